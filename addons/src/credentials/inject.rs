//! Putting a secret into a request, and into no other.

use std::sync::Arc;

use http::HeaderValue;
use http::header::ACCEPT_ENCODING;
use parking_lot::RwLock;

use super::clean::Unwanted;
use super::scrub::Scrubber;
use super::secret::Prepared;
use super::{Credential, placeholder};
use crate::contract::{Anonymous, Code, Container, Denial, Flow, Host, Path, Request, Scheme};

/// The credentials of one host, on whatever port.
#[derive(Default)]
pub(super) struct HostCredentials {
    credentials: Vec<Arc<Credential>>,
    unwanted: Unwanted,
    prepared: RwLock<Option<Arc<Prepared>>>,
}

impl HostCredentials {
    pub(super) fn add(&mut self, credential: &Arc<Credential>) {
        let known = self
            .credentials
            .iter()
            .any(|other| Arc::ptr_eq(other, credential));
        if !known {
            self.unwanted.add(credential);
            self.credentials.push(Arc::clone(credential));
        }
    }

    /// Takes from a request what the client brought, adds what is for it, and answers what its
    /// response must be scrubbed with.
    pub(super) fn apply(
        &self,
        flow: &mut Flow,
        request: &mut Request,
    ) -> Result<Arc<Scrubber>, Denial> {
        let container = Arc::clone(flow.container()?);
        let anonymous = flow.slots.find::<Anonymous>().is_some();
        let is_for = |credential: &Credential| {
            !anonymous
                && flow.scheme == Scheme::Https
                && credential.is_for(&flow.host, flow.port, &container, &request.path)
        };
        let chosen: Vec<bool> = self.credentials.iter().map(|c| is_for(c)).collect();
        if !chosen.contains(&true) {
            placeholder::refuse(flow, request)?;
        }
        self.unwanted.remove_from(request);
        // Nothing can be found in what is compressed, and decoding costs.
        let identity = HeaderValue::from_static("identity");
        request.headers.insert(ACCEPT_ENCODING, identity);
        let prepared = self.prepared()?;
        for ((credential, headers), chosen) in
            self.credentials.iter().zip(&prepared.headers).zip(chosen)
        {
            if !chosen {
                continue;
            }
            let headers = headers
                .as_ref()
                .map_err(|why| unavailable(&credential.name, why))?;
            flow.note(|| format!("credential {} would be added", credential.name));
            let mut added = false;
            for (name, value) in headers {
                let vacant = !request.headers.contains_key(name);
                if vacant && !flow.is_rehearsal() {
                    request.headers.insert(name, value.clone());
                }
                added |= vacant;
            }
            if added {
                record(flow, &credential.name);
            }
        }
        Ok(Arc::clone(&prepared.scrubber))
    }

    fn prepared(&self) -> Result<Arc<Prepared>, Denial> {
        if let Some(prepared) = &*self.prepared.read()
            && prepared.is_current(&self.credentials)
        {
            return Ok(Arc::clone(prepared));
        }
        let names = || self.credentials.first().map_or("", |first| &first.name);
        let prepared =
            Prepared::read(&self.credentials).map_err(|why| unavailable(names(), &why))?;
        let prepared = Arc::new(prepared);
        *self.prepared.write() = Some(Arc::clone(&prepared));
        Ok(prepared)
    }
}

impl Credential {
    fn is_for(&self, host: &Host, port: u16, container: &Container, path: &Path) -> bool {
        let here = self.hosts.iter().any(|(h, p)| h == host && *p == port);
        let ids = self.containers.as_ref();
        let for_container = ids.is_none_or(|ids| ids.contains(&container.id));
        let for_path = self.repos.as_ref().is_none_or(|repos| {
            let allowed = |repo: &&String| container.repos.iter().any(|own| own.is(repo));
            repos
                .iter()
                .filter(allowed)
                .any(|repo| names_repo(path, repo))
        });
        here && for_container && for_path
    }
}

/// Whether the path is `/OWNER/NAME…`, with or without `.git`, or the API's `/repos/OWNER/NAME…`.
/// A path with two readings names nothing.
fn names_repo(path: &Path, repo: &str) -> bool {
    if path.ambiguity().is_some() {
        return false;
    }
    let path = path.normal();
    let path = path
        .strip_prefix("/repos/")
        .or_else(|| path.strip_prefix('/'));
    let Some((named, rest)) = path.and_then(|path| path.split_at_checked(repo.len())) else {
        return false;
    };
    let rest = rest.strip_prefix(".git").unwrap_or(rest);
    named.eq_ignore_ascii_case(repo) && (rest.is_empty() || rest.starts_with('/'))
}

fn record(flow: &mut Flow, name: &Arc<str>) {
    flow.record.credential = Some(match &flow.record.credential {
        None => Arc::clone(name),
        Some(before) => format!("{before},{name}").into(),
    });
}

/// The client learns which entry it was; why is for `explain` and the operator.
fn unavailable(name: &str, why: &str) -> Denial {
    let sentence = format!("Credential unavailable: {name}");
    Denial::new(Code::CredentialUnavailable, sentence)
        .rule(name)
        .hint(format!("the secret of {name} in credentials.yaml: {why}"))
}
