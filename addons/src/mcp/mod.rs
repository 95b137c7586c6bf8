//! MCP: which servers are mounted, what a container sees of their tools, and whether a call may be
//! made.

mod definition;
mod exposed;
mod level;
mod overrides;
mod schema;
mod settings;

pub use definition::{DefinitionError, ListedTool};
pub use exposed::{
    Exposed, ExposedPrompt, ExposedPrompts, ExposedTool, Hidden, Listing, MAX_EXPOSED_NAME, Problem,
};
pub use settings::{
    Bundle, Confine, E2bSettings, HiddenValue, HttpSettings, HttpTransport, Injected, McpSettings,
    OnChange, OnUnavailable, OverrideRule, PoliciesSettings, PolisSettings, Scope, ServerKind,
    ServerSettings, StdioSettings,
};

#[cfg(test)]
mod tests;
