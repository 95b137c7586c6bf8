//! Names of the addons, and of the parts of the engine that deny flows. Logs, the audit and
//! `explain` show these names.

/// Counts flows.
pub const METRICS: &str = "metrics";
/// Writes the audit log.
pub const AUDIT: &str = "audit";
/// Sends spans to a collector.
pub const TRACE: &str = "trace";
/// Finds the container behind a flow.
pub const IDENTITY: &str = "identity";
/// Limits the requests, tunnels and DNS questions of a lease.
pub const RATE_LIMIT: &str = "rate_limit";
/// Denies flows to failing upstreams.
pub const CIRCUIT_BREAKER: &str = "circuit_breaker";
/// Judges hosts, ports, methods and addresses, and applies the operator's rules.
pub const POLICY: &str = "policy";
/// Guards GitHub's APIs.
pub const GITHUB: &str = "github";
/// Judges MCP messages.
pub const MCP: &str = "mcp";
/// Judges git requests and pushes.
pub const GIT: &str = "git";
/// Injects secrets.
pub const CREDENTIALS: &str = "credentials";

/// The engine, when it refuses an HTTP request or a tunnel itself.
pub const PROXY: &str = "proxy";
/// The engine, when it refuses a DNS question itself.
pub const DNS: &str = "dns";
/// The engine's resolver.
pub const RESOLVE: &str = "resolve";
/// The engine's dialer.
pub const DIAL: &str = "dial";
