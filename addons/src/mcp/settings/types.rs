//! The settings of `mcp.yaml`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::hidden::HiddenValue;
use super::interceptor::{ContextSettings, InterceptorSettings};
use super::tokens::TokenSettings;
use super::waits::PersonWaits;
use crate::contract::settings::Place;
use crate::contract::{Endpoint, Host, Level, UrlSecrets};

/// The servers, and the rules for their tools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct McpSettings {
    /// The mounted servers, by name; disabled and invalid ones are left out.
    pub servers: BTreeMap<Arc<str>, Arc<ServerSettings>>,
    /// Overrides, by server and the server's own name for the tool. If several entries of a tool
    /// match a container, the most specific one counts.
    pub overrides: OverrideRules,
    /// The policies that judge messages.
    pub policies: PoliciesSettings,
    /// The reaction to a changed definition of a tool.
    pub on_definition_change: OnChange,
    /// Further names of the gateway that clients may use in `Host`: `name` or `name:port`.
    pub allowed_hosts: Vec<Arc<str>>,
    /// How long calls wait for a person's decision.
    pub waits: PersonWaits,
    /// Access for callers without a container.
    pub tokens: TokenSettings,
    /// The request contexts of the interceptor API.
    pub context: ContextSettings,
    /// The interceptor API.
    pub interceptor: InterceptorSettings,
}

/// Overrides, by server and the server's own name for the tool.
pub type OverrideRules = BTreeMap<(Arc<str>, Arc<str>), Vec<Arc<OverrideRule>>>;

/// The settings of one MCP server. The server's sessions survive a reload that changes at most
/// `prefix`, `place` and the classifications.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// The server's name: `[A-Za-z0-9_-]+`.
    pub name: Arc<str>,
    /// The prefix of the exposed names of the server's tools and prompts: `{name}_`, or empty.
    pub prefix: Arc<str>,
    /// The server's kind, with the settings of its transport.
    pub kind: ServerKind,
    /// Time limit of one call.
    pub timeout: Duration,
    /// The containers that see the server: ids, in which `*` matches any text.
    pub containers: Vec<Arc<str>>,
    /// Whether containers share the server's sessions.
    pub scope: Scope,
    /// The classification of its tools, resources and prompts for which the file sets no other.
    /// `None`: tools are `Public`, and resources and prompts have the highest one of its tools.
    pub classification: Option<Level>,
    /// The classifications of resources, by patterns of URIs in which `*` matches any text.
    pub resources: Vec<(Arc<str>, Level)>,
    /// The classifications of prompts, by patterns of the server's own names for them.
    pub prompts: Vec<(Arc<str>, Level)>,
    /// Its place in the file.
    pub place: Place,
}

/// The kind of a server, with the settings of its transport.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerKind {
    /// A child process that communicates over stdin and stdout.
    Stdio(StdioSettings),
    /// A server over HTTP.
    Http(HttpSettings),
    /// The program `coding-sidecar` in a tool container.
    CodingSidecar(CodingSettings),
    /// A process in an e2b sandbox, which this version does not implement.
    E2b(E2bSettings),
    /// A server of the gateway itself, from `policies.servers`.
    Policy(PolicyServer),
}

/// A server of the gateway itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyServer {
    /// The policy in force, for agents and people.
    Reader {
        /// Whether the tool `decide` is listed: `policies.expose_decide`.
        decides: bool,
    },
    /// Decides questions and sets the policy; for people only, so that no container sees it.
    Approver,
    /// Proposes policies; for agents only.
    Proposer,
    /// Waits for people's decisions; for agents only.
    Loop,
}

impl PolicyServer {
    /// The name under which the server is mounted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader { .. } => "policy_reader",
            Self::Approver => "policy_approver",
            Self::Proposer => "policy_proposer",
            Self::Loop => "loop",
        }
    }

    /// Whether containers see the server.
    pub const fn is_for_agents(self) -> bool {
        !matches!(self, Self::Approver)
    }

    /// Whether people see the server.
    pub const fn is_for_people(self) -> bool {
        matches!(self, Self::Reader { .. } | Self::Approver)
    }
}

/// A child process.
#[derive(Clone, Debug, PartialEq)]
pub struct StdioSettings {
    /// The program and its arguments; never empty.
    pub command: Vec<HiddenValue>,
    /// Environment variables in addition to those that every child process gets.
    pub env: Vec<(String, HiddenValue)>,
    /// The values of the variables that were expanded in `command` and `env`. They may be secrets.
    pub expanded: Vec<HiddenValue>,
    /// The working directory of the process; the home directory if `None`.
    pub work_dir: Option<PathBuf>,
    /// The hosts and ports that the process may reach.
    pub hosts: Vec<(Host, u16)>,
    /// Paths that the process may read.
    pub read: Vec<PathBuf>,
    /// Paths that the process may write.
    pub write: Vec<PathBuf>,
    /// How the process is confined.
    pub confine: Confine,
    /// Whether a confined process may make Unix sockets other than connected pairs.
    pub unix_sockets: bool,
    /// Whether the process starts when the lease of a container begins.
    pub eager: bool,
}

/// How a child process is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confine {
    /// In separate namespaces.
    #[default]
    Namespaces,
    /// Unconfined, by explicit choice of the operator.
    None,
}

/// A server over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpSettings {
    /// The URL, with its variables expanded.
    pub url: HiddenValue,
    /// The parts of the URL that come from variables.
    pub url_secrets: UrlSecrets,
    /// Scheme, host and port of the URL.
    pub endpoint: Endpoint,
    /// Header fields of every request.
    pub headers: Vec<(String, HiddenValue)>,
    /// The server's transport.
    pub transport: HttpTransport,
}

/// A transport over HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpTransport {
    /// Streamable HTTP: one endpoint for POST and GET.
    #[default]
    Streamable,
    /// HTTP+SSE (2024-11-05): a stream, and a second endpoint for messages.
    Sse,
}

/// A coding sidecar, which the proxy does not start.
#[derive(Clone, Debug, PartialEq)]
pub struct CodingSettings {
    /// The address on which the sidecar listens.
    pub endpoint: CodingEndpoint,
    /// How long a call waits for the sidecar to become ready.
    pub wait_for_ready: Duration,
    /// The bearer token of every request; `None` to send none.
    pub token: Option<HiddenValue>,
    /// Whether the sidecar must refuse requests without the token.
    pub requires_token: bool,
}

/// The address on which a coding sidecar listens.
#[derive(Clone, Debug, PartialEq)]
pub enum CodingEndpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host and port, without TLS.
    Tcp(Endpoint),
}

/// The settings of an e2b sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct E2bSettings {
    /// The program and its arguments.
    pub command: Vec<HiddenValue>,
    /// The template of the sandbox, if the file names one.
    pub template: Option<String>,
}

/// Whether containers share the sessions of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each lease has separate sessions.
    #[default]
    Container,
    /// All containers share sessions.
    Shared,
}

/// The override of one tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverrideRule {
    /// The containers that the override applies to: ids, in which `*` matches any text. Empty for
    /// all containers.
    pub containers: Vec<Arc<str>>,
    /// The exposed name; `None` keeps the server's name with its prefix.
    pub rename: Option<Arc<str>>,
    /// The exposed description; `None` keeps the server's.
    pub description: Option<Arc<str>>,
    /// Fields of the arguments that the caller can neither see nor set.
    pub hide_fields: Vec<Arc<str>>,
    /// Fields of the arguments that the caller can neither see nor set, each with the value that
    /// the proxy adds.
    pub defaults: Vec<(Arc<str>, Injected)>,
    /// The operator's `openWorldHint`; a stricter hint of the server takes precedence.
    pub open_world: Option<bool>,
    /// The operator's title and hints. They replace the title and hints of the definition. If the
    /// definition's value of a hint is stricter, that value stays.
    pub annotations: serde_json::Map<String, Value>,
    /// The confidentiality of the tool's results.
    pub classification: Level,
}

/// A value that is added to the arguments of a call. Its `Debug` output is redacted, since the value
/// may be a secret.
#[derive(Clone, PartialEq)]
pub enum Injected {
    /// The same value for each call.
    Value(Value),
    /// The same, but written with a variable of the environment, so perhaps a secret. People who
    /// decide about a call are not shown it.
    Variable(Value),
    /// A random UUID for each call: `uuid()`.
    Uuid,
    /// The time of each call as RFC 3339: `now()`.
    Now,
}

impl fmt::Debug for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value(_) | Self::Variable(_) => "…",
            Self::Uuid => "uuid()",
            Self::Now => "now()",
        })
    }
}

/// The policies that judge messages.
#[derive(Clone, Debug, PartialEq)]
pub struct PoliciesSettings {
    /// The bundles; all are evaluated, and the strictest decision counts.
    pub bundles: Vec<Bundle>,
    /// The command that judges messages; then there are no bundles.
    pub command: Option<CommandPolicy>,
    /// Time limit for all bundles together, or the command, to judge one message, or one input
    /// request in a server's response.
    pub timeout: Duration,
    /// The reaction if a bundle or the command could not be loaded.
    pub on_unavailable: OnUnavailable,
    /// The mounted policy servers.
    pub servers: Vec<PolicyServer>,
    /// The id of the bundle that people may replace by another policy; `None`: no bundle.
    pub editable: Option<Arc<str>>,
}

impl PoliciesSettings {
    /// The methods of the messages that policies can judge.
    pub const METHODS: [&str; 5] = [
        "tools/call",
        "prompts/get",
        "resources/read",
        "elicitation/create",
        "sampling/createMessage",
    ];

    /// The name of the file with the policy's text, for the language of the evaluator.
    pub const fn file_name(&self) -> &'static str {
        match self.command {
            Some(_) => "policy.py",
            None => "policy.rego",
        }
    }

    /// Whether the text of the policies is shown or replaced.
    pub fn shows_text(&self) -> bool {
        self.editable.is_some() || !self.servers.is_empty()
    }
}

impl Default for PoliciesSettings {
    fn default() -> Self {
        Self {
            bundles: Vec::new(),
            command: None,
            timeout: Duration::from_millis(500),
            on_unavailable: OnUnavailable::Deny,
            servers: Vec::new(),
            editable: None,
        }
    }
}

/// A Rego bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// The bundle's name in metrics and in the audit.
    pub id: Arc<str>,
    /// A directory or a `.tar.gz` file.
    pub path: PathBuf,
    /// The package or rule that decides: `mcp/authz` is `data.mcp.authz`.
    pub entrypoint: Arc<str>,
    /// The methods of the messages that the bundle judges.
    pub methods: Vec<Arc<str>>,
    /// Its key path, such as `policies.bundles[0]`.
    pub key: Box<str>,
    /// Its place in the file.
    pub place: Place,
}

/// A command that is run for each message and prints its decision.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandPolicy {
    /// The program and its arguments; never empty.
    pub command: Vec<HiddenValue>,
    /// Environment variables in addition to those of every child process.
    pub env: Vec<(String, HiddenValue)>,
    /// The values of the variables that were expanded in `command` and `env`. They may be secrets.
    pub expanded: Vec<HiddenValue>,
    /// The file whose text the command gets.
    pub source: Option<PathBuf>,
    /// The working directory of the process; the home directory if `None`.
    pub work_dir: Option<PathBuf>,
    /// Paths that the process may read.
    pub read: Vec<PathBuf>,
    /// How the process is confined.
    pub confine: Confine,
    /// The most private memory of each of its processes, in bytes.
    pub memory: u64,
    /// The number of processors that its processes may use.
    pub cpus: usize,
    /// The methods of the messages that the command judges.
    pub methods: Vec<Arc<str>>,
    /// Its place in the file.
    pub place: Place,
}

impl CommandPolicy {
    /// The command's name in metrics, in the audit and in denials: the `bundle` there.
    pub const ID: &'static str = "command";
    /// Its key path.
    pub const KEY: &'static str = "policies.evaluator";
}

/// A configured policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// A Rego bundle.
    Bundle(Bundle),
    /// A command.
    Command(CommandPolicy),
}

impl Policy {
    /// Its name in metrics and in the audit.
    pub fn id(&self) -> &str {
        match self {
            Self::Bundle(bundle) => &bundle.id,
            Self::Command(_) => CommandPolicy::ID,
        }
    }

    /// Its key path.
    pub fn key(&self) -> &str {
        match self {
            Self::Bundle(bundle) => &bundle.key,
            Self::Command(_) => CommandPolicy::KEY,
        }
    }

    /// Its place in the file.
    pub fn place(&self) -> Place {
        match self {
            Self::Bundle(bundle) => bundle.place,
            Self::Command(command) => command.place,
        }
    }

    /// Whether `other` has the same settings, wherever they are in the file.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other.clone()) {
            (Self::Bundle(own), Self::Bundle(mut moved)) => {
                moved.key.clone_from(&own.key);
                moved.place = own.place;
                moved == *own
            }
            (Self::Command(own), Self::Command(mut moved)) => {
                moved.place = own.place;
                moved == *own
            }
            _ => false,
        }
    }
}

/// The reaction if a bundle or the command could not be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// Denies the messages that the policy would judge.
    #[default]
    Deny,
    /// Leaves the decision on the messages that the policy would judge to the other bundles. If no
    /// loaded policy judges a message, the message passes.
    Allow,
}

/// The reaction to a changed definition of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// The tool is blocked until an operator accepts the change.
    #[default]
    Deny,
    /// The change is logged and counted.
    Log,
}
