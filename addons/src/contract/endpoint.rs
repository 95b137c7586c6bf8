//! The address of an upstream.

use http::Uri;

use super::host::{Authority, Host};

/// The scheme of an upstream's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Clear text.
    Http,
    /// TLS with a verified certificate.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// An upstream: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its scheme.
    pub scheme: Scheme,
    /// Its host.
    pub host: Host,
    /// Its TCP port.
    pub port: u16,
}

impl Endpoint {
    /// The upstream of an `http://` or `https://` URL; `None` for any other URI, and for an invalid
    /// or ambiguous authority.
    #[must_use]
    pub fn of(url: &Uri) -> Option<Self> {
        let (scheme, port) = match url.scheme_str()? {
            "https" => (Scheme::Https, 443),
            "http" => (Scheme::Http, 80),
            _ => return None,
        };
        let authority = Authority::parse(url.authority()?.as_str(), Some(port));
        let Authority { host, port } = authority.ok()?;
        Some(Self { scheme, host, port })
    }

    /// The authority in normal form, without the scheme's default port, as clients send it.
    pub fn authority(&self) -> String {
        match (self.scheme, self.port) {
            (Scheme::Http, 80) | (Scheme::Https, 443) => self.host.to_string(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}
