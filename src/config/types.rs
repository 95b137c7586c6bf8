//! The validated configuration.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use addons::Settings;
use addons::contract::{EntryMap, Host, Origin};

/// The settings of all files, validated. A reload builds another one or changes nothing.
#[derive(Debug)]
pub struct Config {
    /// The engine's settings, from `proxy.yaml`.
    pub proxy: ProxyConfig,
    /// The settings of the addons, from all files.
    pub addons: Settings,
    /// The names of the files that exist.
    pub files: Vec<&'static str>,
    /// Warnings for the log and for `check`, such as inactive credentials. Never a secret.
    pub warnings: Vec<String>,
}

/// The engine's own settings.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    pub listen: Listen,
    /// The file mode of the admin socket.
    pub admin_mode: u32,
    /// The users that may use the admin socket besides our own and root.
    pub admin_uids: Vec<u32>,
    pub data_dir: PathBuf,
    pub certs_dir: PathBuf,
    pub shutdown_timeout: Duration,
    pub tls: TlsConfig,
    pub upstream: UpstreamConfig,
    pub limits: Limits,
    pub dns: DnsConfig,
    pub logging: Logging,
    pub audit: AuditConfig,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    pub proxy: Vec<SocketAddr>,
    /// Each for UDP and TCP.
    pub dns: Vec<SocketAddr>,
    pub mcp: Vec<SocketAddr>,
    pub admin: PathBuf,
}

#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Hosts whose TLS is not intercepted.
    pub passthrough: EntryMap<Origin>,
    /// A PEM bundle of CAs that are trusted for upstreams, besides the system's.
    pub upstream_ca: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// If empty, those of the system's resolv.conf are used.
    pub nameservers: Vec<SocketAddr>,
    pub hosts: Arc<HashMap<Host, StaticAddress>>,
    pub connect_timeout: Duration,
    /// The limit from the request to the response head.
    pub response_timeout: Duration,
    pub idle_timeout: Duration,
}

/// A static DNS answer. If there is a port, it is dialled instead of the request's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticAddress {
    pub address: IpAddr,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_connections: usize,
    pub max_connections_per_container: usize,
    pub header_read_timeout: Duration,
    pub max_header_bytes: usize,
    /// The most buffered bytes of one body.
    pub inspect_body_bytes: usize,
    /// The most JSON values of a buffered body.
    pub inspect_values: usize,
    /// The limit from a message's head to the last byte that must be buffered.
    pub inspect_timeout: Duration,
    /// The most buffered bytes of all bodies together.
    pub inspect_memory: usize,
    pub certificates_per_minute: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// The numbers of the record types that are answered; others get an empty NOERROR.
    pub types: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// A level, or directives of `tracing_subscriber::EnvFilter`.
    pub level: String,
    pub json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    pub path: PathBuf,
    pub max_bytes: u64,
    pub keep: usize,
}
