//! The setting `tracing.otlp_endpoint` of `proxy.yaml`.

use std::fmt;

use http::Uri;

use crate::contract::settings::Files;
use crate::contract::{Authority, Host};

/// The base URL of an OTLP collector over HTTP, in the form of `OTEL_EXPORTER_OTLP_ENDPOINT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    base: String,
    authority: Authority,
}

impl Collector {
    /// Reads `tracing` of `proxy.yaml`; `None` without an endpoint.
    pub fn read(files: &Files<'_>) -> Option<Self> {
        let tracing = files.proxy.fields().section("tracing");
        tracing.optional("otlp_endpoint", |at| at.parse(Self::parse))
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
        f.write_str(&self.base)
    }
}
