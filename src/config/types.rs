//! The validated configuration.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::notify::NotifyTarget;
use addons::Settings;
use addons::contract::{EntryMap, Host, Learned, Origin};

/// The validated settings of all files. Never changed: a reload builds a new value.
#[derive(Debug)]
pub struct Config {
    /// The engine's settings, from `proxy.yaml`.
    pub proxy: ProxyConfig,
    /// The settings of the addons, from all files.
    pub addons: Settings,
    /// The hosts of `learned.yaml`; empty unless a server loaded the configuration.
    pub learned: Arc<Learned>,
    /// The names of the configuration files that exist.
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
    /// The ids of users that may use the admin socket, besides root and the server's own user.
    pub admin_uids: Vec<u32>,
    pub data_dir: PathBuf,
    pub certs_dir: PathBuf,
    /// How long flows may take to end after a shutdown has begun.
    pub shutdown_timeout: Duration,
    pub tls: TlsConfig,
    pub upstream: UpstreamConfig,
    pub limits: Limits,
    pub dns: DnsConfig,
    pub logging: Logging,
    pub audit: AuditConfig,
    pub approvals: ApprovalsConfig,
}

/// The questions to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalsConfig {
    /// How long a question waits for a person's decision, and how long a denial answers equal
    /// questions.
    pub ttl: Duration,
    /// Whether hosts can be approved for every container, and `learned.yaml` is in force.
    pub learned: bool,
    /// The URLs that learn of each new question.
    pub notify: Vec<NotifyTarget>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    pub proxy: Vec<SocketAddr>,
    /// Each address is bound for UDP and for TCP.
    pub dns: Vec<SocketAddr>,
    pub mcp: Vec<SocketAddr>,
    /// The path of the admin socket.
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
    /// The nameservers for all look-ups; if empty, the nameservers of the system's resolv.conf.
    pub nameservers: Vec<SocketAddr>,
    /// Static answers, by name. These names are not looked up.
    pub hosts: Arc<HashMap<Host, StaticAddress>>,
    pub connect_timeout: Duration,
    /// Limit on the wait for a response head. If the client has sent more of its request body by
    /// the deadline, the wait starts over.
    pub response_timeout: Duration,
    pub idle_timeout: Duration,
}

/// A static DNS answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticAddress {
    pub address: IpAddr,
    /// Dialled instead of the request's port.
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_connections: usize,
    pub max_connections_per_container: usize,
    pub header_read_timeout: Duration,
    pub max_header_bytes: usize,
    /// Limit on the buffered bytes of one body.
    pub inspect_body_bytes: usize,
    /// Limit on the number of JSON values in a buffered body.
    pub inspect_values: usize,
    /// Limit on the time from a message's head to the last byte of its body, if the body must be
    /// buffered.
    pub inspect_timeout: Duration,
    /// Limit on the buffered bytes of all bodies together.
    pub inspect_memory: usize,
    /// The number of leaf certificates that may be minted for a lease per minute. Also the size of
    /// the lease's token bucket.
    pub certificates_per_minute: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// The numbers of the record types that are answered; questions for others get an empty
    /// NOERROR.
    pub types: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// A level, or directives of `tracing_subscriber::EnvFilter`.
    pub level: String,
    /// Whether log lines are JSON rather than text.
    pub json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    pub path: PathBuf,
    /// Limit on the size of the file, in bytes. The file is rotated before a line that would exceed
    /// the limit.
    pub max_bytes: u64,
    /// The number of rotated files that are kept, at least 1. Without a rotated file, `audit
    /// verify` could not tell a rotation from a log whose beginning was cut.
    pub keep: usize,
}
