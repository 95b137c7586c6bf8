//! The validated configuration, as the rest of the engine reads it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Entry, EntryMap, Host, Origin};
use addons::credentials::CredentialSettings;
use addons::observe::Collector;
use ipnet::IpNet;

/// Everything the files say, validated. A reload builds another one or changes nothing.
#[derive(Debug)]
pub struct Config {
    /// `proxy.yaml`
    pub proxy: ProxyConfig,
    /// `allowlist.yaml`, for HTTP and DNS alike.
    pub allowlist: EntryMap<Arc<Entry>>,
    /// `policy.yaml`
    pub policy: PolicyConfig,
    /// `credentials.yaml`
    pub credentials: CredentialSettings,
    /// The files that were there.
    pub files: Vec<&'static str>,
    /// What is in order but deserves a word at start and in `check`: inactive credentials and
    /// the like. Never a secret.
    pub warnings: Vec<String>,
}

/// `proxy.yaml`
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
    /// Where traces go, if anywhere.
    pub collector: Option<Collector>,
    pub audit: AuditConfig,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub allow_private: Vec<IpNet>,
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
    /// CONNECTs, each of which may begin one TLS handshake; four times as many at once.
    pub tunnels_per_second: u32,
    pub certificates_per_minute: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// The numbers of the record types that are answered; others get an empty NOERROR.
    pub types: Vec<u16>,
    pub queries_per_minute: u32,
    pub distinct_names_per_minute: u32,
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
    pub lines_per_minute_per_container: u32,
    pub bytes_per_minute_per_container: u32,
}

/// `policy.yaml`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    pub api: ApiPolicy,
    pub rules: Vec<RuleConfig>,
    pub allow_branch_deletion: bool,
    pub git: GitConfig,
    pub circuit_breakers: CircuitBreakers,
    pub rate_limits: RateLimits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiPolicy {
    /// Method to patterns over the path in normal form.
    pub blocked_patterns: BTreeMap<String, Vec<String>>,
    pub allowed_patterns: BTreeMap<String, Vec<String>>,
    pub blocked_mutations: Vec<String>,
    pub allowed_mutations: Vec<String>,
    /// Accounts of assistants, each as a text mentions it: `@copilot`.
    pub blocked_mentions: Vec<String>,
    /// `github_writes: allowlist`; false for `blocklist`.
    pub writes_are_an_allowlist: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleConfig {
    pub name: String,
    pub effect: Effect,
    /// Empty: any.
    pub hosts: EntryMap<()>,
    /// Empty: any.
    pub methods: Vec<http::Method>,
    /// Regular expressions, each validated. Empty: any.
    pub paths: Vec<String>,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Allow,
    Deny,
    Ask,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitConfig {
    pub hosts: Vec<GitHost>,
    pub bot_branch_prefixes: Vec<String>,
    pub public_reads: bool,
    /// `push_denials: report`; false for `status`.
    pub report_push_denials: bool,
    pub warning_bytes: u64,
    pub hard_limit_bytes: u64,
}

/// A git host and the hosts that serve its API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitHost {
    pub host: Host,
    pub api: Option<Host>,
    pub uploads: Option<Host>,
    pub raw: Option<Host>,
    pub codeload: Option<Host>,
}

impl GitHost {
    /// The host, and those of its services.
    pub fn all_hosts(&self) -> impl Iterator<Item = &Host> {
        let others = [&self.api, &self.uploads, &self.raw, &self.codeload];
        std::iter::once(&self.host).chain(others.into_iter().flatten())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitBreakers {
    pub defaults: CircuitBreaker,
    pub upstreams: EntryMap<CircuitBreaker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitBreaker {
    pub failure_threshold: u32,
    pub recovery_timeout: Duration,
    pub success_threshold: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimits {
    pub enabled: bool,
    pub defaults: RateLimit,
    pub per_upstream: EntryMap<RateLimit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    pub requests_per_second: u32,
    pub burst_size: u32,
}
