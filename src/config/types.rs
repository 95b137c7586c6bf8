//! The validated configuration, as the rest of the engine reads it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use addons::Settings;
use addons::contract::{EntryMap, Host, Origin};

/// Everything the files say, validated. A reload builds another one or changes nothing.
#[derive(Debug)]
pub struct Config {
    /// What `proxy.yaml` says to the engine.
    pub proxy: ProxyConfig,
    /// What the files say to the addons.
    pub addons: Settings,
    /// The files that were there.
    pub files: Vec<&'static str>,
    /// What is in order but deserves a word at start and in `check`: inactive credentials and
    /// the like. Never a secret.
    pub warnings: Vec<String>,
}

/// The engine's own settings.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    pub listen: Listen,
    /// Mode of the admin socket.
    pub admin_mode: u32,
    /// Who may use the admin socket besides our own uid and 0.
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
    /// UDP and TCP on each.
    pub dns: Vec<SocketAddr>,
    pub mcp: Vec<SocketAddr>,
    pub admin: PathBuf,
}

#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Hosts tunnelled without interception.
    pub passthrough: EntryMap<Origin>,
    /// A PEM bundle trusted for upstreams besides the system roots.
    pub upstream_ca: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Empty: those of the system's resolv.conf.
    pub nameservers: Vec<SocketAddr>,
    pub hosts: Arc<HashMap<Host, StaticAddress>>,
    pub connect_timeout: Duration,
    /// To the response head.
    pub response_timeout: Duration,
    pub idle_timeout: Duration,
}

/// A static answer; the port, where given, replaces the one that was asked for when dialling.
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
    /// The most that is buffered of one body, in bytes.
    pub inspect_body_bytes: usize,
    /// The most JSON values in a buffered body.
    pub inspect_values: usize,
    /// From a message's head to the last byte that must be buffered.
    pub inspect_timeout: Duration,
    /// The most memory for all buffered bodies together, in bytes.
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
    /// A level, or directives as `tracing_subscriber::EnvFilter` reads them.
    pub level: String,
    pub json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    pub path: PathBuf,
    pub max_bytes: u64,
    pub keep: usize,
}
