//! The setting `tracing.otlp_endpoint` of `proxy.yaml`.

use std::fmt;

use http::Uri;

use crate::contract::settings::Files;
use crate::contract::{Endpoint, Host, UrlSecrets};

/// The base URL of an OTLP collector over HTTP, in the form of `OTEL_EXPORTER_OTLP_ENDPOINT`.
#[derive(Clone, PartialEq, Eq)]
pub struct Collector {
    base: String,
    endpoint: Endpoint,
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
        let is_base = uri.query().is_none() && !text.contains('#');
        let endpoint = Endpoint::of(&uri).filter(|_| is_base);
        Ok(Self {
            base: text.trim_end_matches('/').to_owned(),
            endpoint: endpoint.ok_or(WRONG)?,
            secrets: UrlSecrets::default(),
        })
    }

    /// The host and port of the collector.
    pub(super) fn authority(&self) -> (Host, u16) {
        (self.endpoint.host.clone(), self.endpoint.port)
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
