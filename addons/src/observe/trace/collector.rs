//! The setting `tracing.otlp_endpoint` of `proxy.yaml`.

use std::fmt;

use http::Uri;

use crate::contract::settings::Files;
use crate::contract::{Authority, Host, UrlSecrets};

/// The base URL of an OTLP collector over HTTP, in the form of `OTEL_EXPORTER_OTLP_ENDPOINT`.
#[derive(Clone, PartialEq, Eq)]
pub struct Collector {
    base: String,
    authority: Authority,
    /// The parts of the URL that come from variables.
    pub(super) secrets: UrlSecrets,
}

impl Collector {
    /// Reads `tracing` of `proxy.yaml`; `None` without an endpoint.
    pub fn read(files: &Files<'_>) -> Option<Self> {
        let tracing = files.proxy.fields().section("tracing");
        tracing.optional("otlp_endpoint", |at| {
            let collector = at.parse(Self::parse)?;
            let secrets = UrlSecrets::of(&collector.base, &at.expanded());
            Some(Self {
                secrets,
                ..collector
            })
        })
    }

    /// Parses an `http://` or `https://` URL without a query.
    fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "must be the http:// or https:// URL of an OTLP collector, such as \
             http://collector.example.com:4318";
        let uri: Uri = text.parse().map_err(|_| WRONG)?;
        let port = match uri.scheme_str() {
            Some("https") => 443,
            Some("http") => 80,
            _ => return Err(WRONG),
        };
        let authority = uri.authority().ok_or(WRONG)?.as_str();
        let authority = Authority::parse(authority, Some(port)).map_err(|_| WRONG)?;
        if uri.query().is_some() || text.contains('#') {
            return Err(WRONG);
        }
        Ok(Self {
            base: text.trim_end_matches('/').to_owned(),
            authority,
            secrets: UrlSecrets::default(),
        })
    }

    /// The host and port of the collector.
    pub(super) fn authority(&self) -> (Host, u16) {
        (self.authority.host.clone(), self.authority.port)
    }

    /// The URL to which spans are sent.
    pub(super) fn traces_url(&self) -> String {
        format!("{}/v1/traces", self.base)
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.secrets.redact(&self.base))
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
