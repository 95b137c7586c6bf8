//! The sidecar's operations, each of which is a tool.

use serde_json::value::RawValue;

/// The entries of `tools/list`, as a JSON array.
const TOOLS: &str = include_str!("tools.json");

/// One operation of the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Bash,
    Read,
    Write,
    Edit,
    Ls,
    Find,
    Grep,
}

impl Operation {
    const ALL: [Self; 7] = [
        Self::Bash,
        Self::Read,
        Self::Write,
        Self::Edit,
        Self::Ls,
        Self::Find,
        Self::Grep,
    ];

    /// The operation of a tool; `None` for an unknown tool.
    pub fn of_tool(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|one| one.path().get(1..) == Some(name))
    }

    /// The path of the operation at the sidecar.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Bash => "/bash",
            Self::Read => "/read",
            Self::Write => "/write",
            Self::Edit => "/edit",
            Self::Ls => "/ls",
            Self::Find => "/find",
            Self::Grep => "/grep",
        }
    }
}

/// The result of `tools/list`; `None` only if `tools.json` is not JSON.
pub fn listed() -> Option<Box<RawValue>> {
    RawValue::from_string(format!("{{\"tools\":{TOOLS}}}")).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_longest_timeout_of_a_command_is_the_longest_duration_of_a_call() {
        let tools: Value = serde_json::from_str(TOOLS).unwrap();
        let mut tools = tools.as_array().unwrap().iter();
        let bash = tools.find(|tool| tool["name"] == "bash").unwrap();
        let timeout = &bash["inputSchema"]["properties"]["timeoutSeconds"];
        // `core::exchange::LONGEST_CALL`.
        assert_eq!(timeout["maximum"], 15 * 60);
    }

    #[test]
    fn every_operation_is_listed_with_correct_hints() {
        let listed: Value = serde_json::from_str(listed().unwrap().get()).unwrap();
        let tools = listed["tools"].as_array().unwrap();
        assert_eq!(tools.len(), Operation::ALL.len());
        for tool in tools {
            let operation = Operation::of_tool(tool["name"].as_str().unwrap()).unwrap();
            let hints = &tool["annotations"];
            let changes = matches!(
                operation,
                Operation::Bash | Operation::Write | Operation::Edit
            );
            assert_eq!(hints["readOnlyHint"], !changes, "{tool}");
            assert_eq!(hints["destructiveHint"], changes, "{tool}");
            assert_eq!(
                hints["openWorldHint"],
                operation == Operation::Bash,
                "{tool}"
            );
            assert_eq!(tool["inputSchema"]["additionalProperties"], false);
        }
        assert_eq!(Operation::of_tool("health"), None);
    }
}
