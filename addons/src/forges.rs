//! Git forges and their hosts, from `git` in `policy.yaml`, and functions that the addons `github`
//! and `git` share.

use std::collections::HashSet;

use bytes::Bytes;

use crate::contract::settings::{Files, Setting};
use crate::contract::{Anonymous, BodyJudge, BoxFuture, Buffered, Denial, Flow, Host, Request};
use crate::header_names::{folds_to, remove_fields};

/// The hosts of one forge. If `api` is `None`, the API is on `host`, below `/api`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgeHosts {
    /// The host of web pages and of git over HTTPS.
    pub host: Host,
    /// The host of the API.
    pub api: Option<Host>,
    /// The host to which release assets are uploaded.
    pub uploads: Option<Host>,
    /// The host of raw files.
    pub raw: Option<Host>,
    /// The host of source archives.
    pub codeload: Option<Host>,
}

impl ForgeHosts {
    /// Reads `git.hosts`. The default is github.com with its services.
    pub fn read(files: &Files<'_>) -> Vec<Self> {
        let git = files.policy.fields().section("git");
        git.or("hosts", vec![Self::github()], |at| {
            let mut seen = HashSet::new();
            at.list(|at| {
                let forge = Self::read_one(&at)?;
                if let Some(host) = forge.all_hosts().find(|host| seen.contains(*host)) {
                    at.refuse(format!("{host} is listed twice"));
                }
                seen.extend(forge.all_hosts().cloned());
                Some(forge)
            })
        })
    }

    fn read_one(at: &Setting<'_>) -> Option<Self> {
        if at.is_mapping() {
            let fields = at.fields()?;
            let host = fields.need("host").and_then(|at| at.parse(Host::parse));
            let service = |key| fields.optional(key, |at| at.parse(Host::parse));
            let [api, uploads, raw, codeload] = ["api", "uploads", "raw", "codeload"].map(service);
            return Some(Self {
                host: host?,
                api,
                uploads,
                raw,
                codeload,
            });
        }
        let host = at.parse(Host::parse)?;
        let github = Self::github();
        if host == github.host {
            return Some(github);
        }
        Some(Self {
            host,
            api: None,
            uploads: None,
            raw: None,
            codeload: None,
        })
    }

    /// github.com and the hosts of its services.
    fn github() -> Self {
        let name = |name: &str| Host::Name(name.into());
        Self {
            host: name("github.com"),
            api: Some(name("api.github.com")),
            uploads: Some(name("uploads.github.com")),
            raw: Some(name("raw.githubusercontent.com")),
            codeload: Some(name("codeload.github.com")),
        }
    }

    /// The forge's host, then the hosts of its services.
    pub fn all_hosts(&self) -> impl Iterator<Item = &Host> {
        let others = [&self.api, &self.uploads, &self.raw, &self.codeload];
        std::iter::once(&self.host).chain(others.into_iter().flatten())
    }
}

/// Makes a request anonymous: removes the client's own credential, and keeps the proxy from adding
/// one.
pub(crate) fn send_anonymously(flow: &mut Flow, request: &mut Request) {
    const NAMES: [&str; 2] = ["authorization", "cookie"];
    flow.put_slot(Anonymous);
    remove_fields(&mut request.headers, |name| {
        NAMES.iter().any(|one| folds_to(name, one))
    });
}

/// Adds the sentence of a denial as the detail `message`, unless the denial has that detail.
/// Clients of GitHub's APIs and git-lfs show this detail. Without it, git-lfs reports a 403 as a
/// wrong password.
pub(crate) fn with_message(denial: Denial) -> Denial {
    if denial.detail("message").is_some() {
        return denial;
    }
    let message = denial.sentence().to_owned();
    denial.with("message", message)
}

/// Judges a whole body with a function. The function returns the bytes to send in place of the
/// body. Denials get the detail `message`: see [`with_message`].
pub(crate) struct ForgeBodyJudge<F> {
    /// Name of the addon that judges.
    pub(crate) addon: &'static str,
    pub(crate) judge: F,
}

impl<Head, F, V> BodyJudge<Head> for ForgeBodyJudge<F>
where
    F: FnOnce(Buffered) -> V + Send + 'static,
    V: Future<Output = Result<Bytes, Denial>> + Send + 'static,
{
    fn addon(&self) -> &'static str {
        self.addon
    }

    fn for_client(&self, denial: Denial) -> Denial {
        with_message(denial)
    }

    fn judge<'a>(
        self: Box<Self>,
        _flow: &'a mut Flow,
        _head: &'a mut Head,
        body: Buffered,
    ) -> BoxFuture<'a, Result<Bytes, Denial>> {
        Box::pin(async move { (self.judge)(body).await.map_err(with_message) })
    }
}

/// Reads `git.public_reads`: whether a container may also read repositories that are not in its
/// list. Such a read carries no credential.
pub fn public_reads(files: &Files<'_>) -> bool {
    let git = files.policy.fields().section("git");
    git.or("public_reads", false, |at| {
        at.one_of(&[("deny", false), ("allow", true)])
    })
}
