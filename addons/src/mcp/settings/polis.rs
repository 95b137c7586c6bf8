//! Reads files of the polis gateway. Each key that only polis has causes a warning that names its
//! equivalent, if there is one.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::contract::settings::{Fields, Files, Setting};

/// The keys that identify a file as one of polis.
const OF_POLIS: [&str; 5] = [
    "tools",
    "server",
    "secrets",
    "interceptor_addr",
    "mcp_server_addr",
];
/// The versions of polis files.
const VERSIONS: [&str; 2] = ["1.0", "1"];

/// The process-wide settings of a polis file: defaults for keys of `proxy.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolisSettings {
    /// `interceptor_addr`, `mcp_server_addr` and `single_port`: default of `listen.mcp`.
    pub listen: BTreeSet<SocketAddr>,
    /// Default of `shutdown_timeout`.
    pub shutdown_timeout: Option<Duration>,
    /// Default of `logging.level`.
    pub log_level: Option<String>,
    /// Default of `logging.format`: whether it is JSON.
    pub log_json: Option<bool>,
}

impl PolisSettings {
    /// Reads the settings; all are absent if the file is not one of polis.
    pub fn read(files: &Files<'_>) -> Self {
        let root = files.mcp.root().and_then(|root| root.fields());
        let Some(fields) = root.filter(is_polis) else {
            return Self::default();
        };
        let mut found = Self::default();
        if let Some(version) = fields.find("version")
            && !version
                .any_text()
                .is_some_and(|text| VERSIONS.contains(&text))
        {
            version.refuse("must be \"1.0\", as in files of polis");
        }
        let server = fields.section("server");
        for place in [&fields, &server] {
            found.read_server(place);
        }
        let logging = mapped(&fields, "logging", "logging in proxy.yaml");
        if let Some(logging) = logging.and_then(|at| at.fields()) {
            found.read_logging(&logging);
        }
        if let Some(at) = mapped(&fields, "log_level", "logging.level in proxy.yaml") {
            found.log_level = at.text().map(str::to_owned);
        }
        let metrics =
            "GET /internal/metrics on the admin socket; tracing.otlp_endpoint in proxy.yaml";
        mapped(&fields, "metrics", metrics);
        let secrets = "missing, since this version does not implement e2b";
        mapped(&fields, "secrets", secrets);
        mapped(&fields, "tools", "mcpServers");
        found
    }

    fn read_server(&mut self, fields: &Fields<'_>) {
        for key in ["interceptor_addr", "mcp_server_addr", "single_port"] {
            if let Some(at) = mapped(fields, key, "listen.mcp in proxy.yaml") {
                self.listen.extend(at.parse(address));
            }
        }
        let shutdown = "shutdown_timeout in proxy.yaml";
        if let Some(at) = mapped(fields, "shutdown_timeout", shutdown) {
            self.shutdown_timeout = at.duration();
        }
    }

    fn read_logging(&mut self, fields: &Fields<'_>) {
        self.log_level = fields.optional("level", |at| at.text().map(str::to_owned));
        self.log_json =
            fields.optional("format", |at| at.one_of(&[("json", true), ("text", false)]));
    }
}

/// Whether a file has a key that only files of polis have.
pub(super) fn is_polis(fields: &Fields<'_>) -> bool {
    OF_POLIS.into_iter().any(|key| fields.has(key))
}

/// Claims a key. If it is present, warns that `to` is its equivalent, and returns its value.
fn mapped<'a>(fields: &Fields<'a>, key: &'static str, to: &str) -> Option<Setting<'a>> {
    let at = fields.find(key)?;
    let message = format!("{key} is a key of polis; its equivalent is {to}");
    at.report().warn_at(at.place(), message);
    Some(at)
}

/// Reads `:8090`, which means port 8090 of all IPv4 addresses, or `address:8090`.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    const WRONG: &str = "must be :PORT or ADDRESS:PORT";
    match text.strip_prefix(':') {
        Some(port) => {
            let port = port.parse().map_err(|_| WRONG)?;
            Ok((Ipv4Addr::UNSPECIFIED, port).into())
        }
        None => text.parse().map_err(|_| WRONG),
    }
}
