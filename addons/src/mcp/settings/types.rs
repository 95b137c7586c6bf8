//! What `mcp.yaml` says, as values.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use zeroize::Zeroizing;

use crate::contract::settings::Place;
use crate::contract::{Endpoint, Host, Level};

/// The servers, and the rules for their tools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct McpSettings {
    /// The mounted servers, by name; disabled ones are left out.
    pub servers: BTreeMap<Arc<str>, Arc<ServerSettings>>,
    /// What is changed about tools, by server and the server's own name of the tool; the entries
    /// of one tool are for different containers, and the most specific one wins.
    pub overrides: OverrideRules,
    /// Who decides about messages.
    pub policies: PoliciesSettings,
    /// What happens when a tool's definition changes.
    pub on_definition_change: OnChange,
    /// Names besides our own that clients may reach the gateway by: `name` or `name:port`.
    pub allowed_hosts: Vec<Arc<str>>,
}

/// The rules for tools, by server and the server's own name of the tool.
pub type OverrideRules = BTreeMap<(Arc<str>, Arc<str>), Vec<Arc<OverrideRule>>>;

/// One MCP server. Two that are equal need no restart.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// Its name: `[a-z0-9-]+`.
    pub name: Arc<str>,
    /// What stands before the names of its tools and prompts: `{name}_`, or nothing.
    pub prefix: Arc<str>,
    /// How it is reached.
    pub kind: ServerKind,
    /// How long one call may take.
    pub timeout: Duration,
    /// The containers that see it: ids in which `*` stands for any text.
    pub containers: Vec<Arc<str>>,
    /// Whether each container has sessions of its own.
    pub scope: Scope,
    /// Where the file says it.
    pub place: Place,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerKind {
    /// A child process that speaks on stdin and stdout.
    Stdio(StdioSettings),
    /// Over HTTP.
    Http(HttpSettings),
    /// The program `coding-sidecar` in a tool container.
    CodingSidecar(CodingSettings),
    /// In an e2b sandbox, which this version does not have.
    E2b(E2bSettings),
}

/// A child process.
#[derive(Clone, Debug, PartialEq)]
pub struct StdioSettings {
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// Its environment, besides what every child gets.
    pub env: Vec<(String, HiddenValue)>,
    /// Its working directory; its own empty home without one.
    pub work_dir: Option<PathBuf>,
    /// The hosts and ports that it may reach.
    pub hosts: Vec<(Host, u16)>,
    /// Paths that it may read.
    pub read: Vec<PathBuf>,
    /// Paths that it may write.
    pub write: Vec<PathBuf>,
    /// How it is confined.
    pub confine: Confine,
}

/// How a child process is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confine {
    /// In namespaces of its own.
    #[default]
    Namespaces,
    /// Not at all: an explicit choice of the operator.
    None,
}

/// A server over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpSettings {
    /// The URL as the file gives it.
    pub url: String,
    /// Scheme, host and port of it.
    pub endpoint: Endpoint,
    /// Fields that every request carries.
    pub headers: Vec<(String, HiddenValue)>,
    /// Which transport it speaks.
    pub transport: HttpTransport,
}

/// Which of the two transports over HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpTransport {
    /// One endpoint for POST and GET.
    #[default]
    Streamable,
    /// A stream, and a second endpoint for messages (2024-11-05).
    Sse,
}

/// A coding sidecar that somebody else started.
#[derive(Clone, Debug, PartialEq)]
pub struct CodingSettings {
    /// Where it listens.
    pub endpoint: CodingEndpoint,
    /// How long a call waits for it to come up.
    pub wait_for_ready: Duration,
    /// Sent with every request.
    pub token: Option<HiddenValue>,
    /// The sidecar must refuse requests without the token.
    pub requires_token: bool,
}

/// Where a coding sidecar listens.
#[derive(Clone, Debug, PartialEq)]
pub enum CodingEndpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host and port, in clear text.
    Tcp(Endpoint),
}

/// What an e2b sandbox would be made from.
#[derive(Clone, Debug, PartialEq)]
pub struct E2bSettings {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The template.
    pub template: Option<String>,
}

/// Text that may hold a secret: never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct HiddenValue(pub Zeroizing<String>);

impl fmt::Debug for HiddenValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Whose sessions a mount has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each lease has its own.
    #[default]
    Container,
    /// All containers share them.
    Shared,
}

/// What is changed about one tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverrideRule {
    /// The containers that it is for; empty for all.
    pub containers: Vec<Arc<str>>,
    /// The exposed name.
    pub rename: Option<Arc<str>>,
    /// The exposed description.
    pub description: Option<Arc<str>>,
    /// Fields of the arguments that the caller neither sees nor sets.
    pub hide_fields: Vec<Arc<str>>,
    /// Values of fields, which the caller neither sees nor sets.
    pub defaults: Vec<(Arc<str>, Injected)>,
    /// What the operator says about the tool in the place of the server.
    pub open_world: Option<bool>,
    /// The other hints, as they replace those of the definition.
    pub annotations: serde_json::Map<String, Value>,
    /// How confidential its results are.
    pub classification: Level,
}

/// A value that is added to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Injected {
    /// The same for each call.
    Value(Value),
    /// A random UUID for each call: `uuid()`.
    Uuid,
    /// The time of each call as RFC 3339: `now()`.
    Now,
}

/// Who decides about messages.
#[derive(Clone, Debug, PartialEq)]
pub struct PoliciesSettings {
    /// The bundles; all are asked, and the strictest answer counts.
    pub bundles: Vec<Bundle>,
    /// How long an evaluation may take.
    pub timeout: Duration,
    /// What happens where a bundle could not be loaded.
    pub on_unavailable: OnUnavailable,
}

impl Default for PoliciesSettings {
    fn default() -> Self {
        Self {
            bundles: Vec::new(),
            timeout: Duration::from_millis(500),
            on_unavailable: OnUnavailable::Deny,
        }
    }
}

/// A Rego bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Its name in metrics and in the audit.
    pub id: Arc<str>,
    /// A directory or a `.tar.gz`.
    pub path: PathBuf,
    /// The package or rule that decides: `mcp/authz` is `data.mcp.authz`.
    pub entrypoint: Arc<str>,
    /// The methods that it is for.
    pub methods: Vec<Arc<str>>,
    /// Where the file says it.
    pub place: Place,
}

/// What happens where a policy could not be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// Messages that it is for are denied.
    #[default]
    Deny,
    /// They pass.
    Allow,
}

/// What happens when a tool's definition changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// The tool is blocked until an operator accepts the change.
    #[default]
    Deny,
    /// The change is logged and counted.
    Log,
}
