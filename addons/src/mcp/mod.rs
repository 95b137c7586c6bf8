//! MCP: which servers are mounted, what a container sees of their tools, and whether a call may be
//! made.

mod settings;

pub use settings::{
    Bundle, Confine, E2bSettings, HiddenValue, HttpSettings, HttpTransport, Injected, McpSettings,
    OnChange, OnUnavailable, OverrideRule, PoliciesSettings, PolisSettings, Scope, ServerKind,
    ServerSettings, StdioSettings,
};
