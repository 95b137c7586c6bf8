//! The name of a tool.

use serde::Deserialize;

/// A tool, by its server's name and its own name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct NamedTool {
    pub server: String,
    pub tool: String,
}
