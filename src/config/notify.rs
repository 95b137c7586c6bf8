//! The setting `approvals.notify` of `proxy.yaml`.

use std::fmt;

use addons::contract::settings::{Fields, Setting};
use addons::contract::{Endpoint, Host, UrlSecrets};
use http::Uri;
use zeroize::Zeroizing;

/// A URL that learns of each new question.
#[derive(Clone, PartialEq, Eq)]
pub struct NotifyTarget {
    pub url: String,
    /// The host and port of the URL.
    pub authority: (Host, u16),
    /// The parts of the URL that come from variables.
    pub url_secrets: UrlSecrets,
    /// The key of the signature.
    pub secret: Zeroizing<String>,
    /// Whether the arguments of tool calls are sent.
    pub arguments: bool,
}

impl NotifyTarget {
    /// Reads `approvals.notify`.
    pub(super) fn read(approvals: &Fields<'_>) -> Vec<Self> {
        approvals.list("notify", |at| Self::one(&at))
    }

    fn one(at: &Setting<'_>) -> Option<Self> {
        let fields = at.fields()?;
        let arguments = fields.or("arguments", false, |at| at.boolean());
        let secret = fields.need("secret").and_then(|at| at.parse(secret));
        let url = fields.need("url");
        let url = url.and_then(|at| Some((at.parse(url_of)?, at.expanded())));
        let ((url, authority), values) = url?;
        Some(Self {
            url_secrets: UrlSecrets::of(&url, &values),
            url,
            authority,
            secret: secret?,
            arguments,
        })
    }
}

fn secret(text: &str) -> Result<Zeroizing<String>, &'static str> {
    match text {
        "" => Err("must be the key of the signature, for example ${NOTIFY_SECRET}"),
        text => Ok(Zeroizing::new(text.to_owned())),
    }
}

/// Parses an `http://` or `https://` URL; returns it with its host and port.
fn url_of(text: &str) -> Result<(String, (Host, u16)), &'static str> {
    const WRONG: &str = "must be an http:// or https:// URL, such as https://hooks.example.com/x";
    let uri: Uri = text.parse().map_err(|_| WRONG)?;
    let endpoint = Endpoint::of(&uri).filter(|_| !text.contains('#'));
    let Endpoint { host, port, .. } = endpoint.ok_or(WRONG)?;
    Ok((text.to_owned(), (host, port)))
}

/// The URL without its query and its secrets.
impl fmt::Display for NotifyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self
            .url
            .split_once('?')
            .map_or(&*self.url, |(path, _)| path);
        f.write_str(&self.url_secrets.redact(path))
    }
}

impl fmt::Debug for NotifyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
