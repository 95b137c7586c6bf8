//! Where a connection to an upstream goes.

use super::host::Host;

/// How the upstream is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In clear text.
    Http,
    /// Over TLS whose certificate was verified.
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
    /// How it is spoken to.
    pub scheme: Scheme,
    /// Its host.
    pub host: Host,
    /// Its TCP port.
    pub port: u16,
}

impl Endpoint {
    /// The authority in normal form; the scheme's default port is left out, as clients do.
    pub fn authority(&self) -> String {
        match (self.scheme, self.port) {
            (Scheme::Http, 80) | (Scheme::Https, 443) => self.host.to_string(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}
