//! The tools and resources of the policy servers.

use addons::mcp::PolicyServer;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::super::{Described, MountError};
use crate::mcp::implementation::implementation;
use crate::mcp::policy::MAX_SOURCE;
use crate::mcp::version::Version;

/// The description of a server. Its lists change only with the settings, after which the gateway
/// opens another session.
pub(super) fn described(server: PolicyServer, version: Version) -> Result<Described, MountError> {
    let not_written = |error: serde_json::Error| MountError::Protocol(error.to_string());
    let capabilities = match server {
        PolicyServer::Reader { decides: false } => json!({ "resources": { "listChanged": true } }),
        PolicyServer::Reader { decides: true } => json!({
            "resources": { "listChanged": true },
            "tools": { "listChanged": true },
        }),
        PolicyServer::Approver | PolicyServer::Proposer | PolicyServer::Loop => {
            json!({ "tools": { "listChanged": true } })
        }
    };
    Ok(Described {
        version,
        capabilities: to_raw_value(&capabilities).map_err(not_written)?,
        server_info: Some(to_raw_value(&implementation()).map_err(not_written)?),
        instructions: None,
    })
}

/// The tools of a server, by its own names for them. For people, `decide` also names a container,
/// since policies judge the calls of containers.
pub fn tools(server: PolicyServer, for_people: bool) -> Vec<Value> {
    match server {
        PolicyServer::Reader { decides: false } => Vec::new(),
        PolicyServer::Reader { decides: true } => vec![decide(for_people)],
        PolicyServer::Approver => approver(),
        PolicyServer::Proposer => vec![tool(
            "propose_policy",
            "Proposes a policy (Rego) that replaces the one in force, which \
             resource://approval-policy/policy.rego contains. A person sees the difference and \
             decides. Returns the id of the question; loop_yield_turn waits for the decision.",
            json!({ "source": source() }),
            &["source"],
            Some(json!({ "id": { "type": "string" } })),
            Hints::WRITES,
        )],
        PolicyServer::Loop => vec![tool(
            "yield_turn",
            "Waits until a person has decided one of your open questions, and then returns. Returns \
             at once if none is open, and after some time if nobody decides. Call it instead of \
             repeating a call that waits for a person.",
            json!({}),
            &[],
            Some(json!({ "ok": { "type": "boolean" } })),
            Hints::READS,
        )],
    }
}

fn decide(for_people: bool) -> Value {
    let mut properties = json!({
        "name": { "type": "string", "description": "The name of the tool, as tools/list has it." },
        "arguments": { "type": "object", "description": "The arguments of the call." },
    });
    let mut required = vec!["name"];
    if let (true, Some(properties)) = (for_people, properties.as_object_mut()) {
        let container =
            json!({ "type": "string", "description": "The id of the container that would call." });
        properties.insert("container".to_owned(), container);
        required.push("container");
    }
    tool(
        "decide",
        "Predicts what the policies decide about a call of a tool: allow, redact, ask, deny_continue or \
         deny_abort. Nothing is called, and nobody is asked.",
        properties,
        &required,
        Some(json!({ "decision": { "type": "string" }, "rationale": { "type": "string" } })),
        Hints::READS,
    )
}

fn approver() -> Vec<Value> {
    let id = |of: &str| json!({ "type": "string", "description": format!("The id of the {of}.") });
    vec![
        tool(
            "approve",
            "Approves a question with the usual scope of its kind: a tool call once, a request or a host \
             for 10 minutes, a definition or a policy for everyone. approvals://pending/{id} shows the \
             question.",
            json!({ "id": id("question") }),
            &["id"],
            None,
            Hints::WRITES,
        ),
        tool(
            "deny",
            "Denies a question.",
            json!({ "id": id("question") }),
            &["id"],
            None,
            Hints::WRITES,
        ),
        tool(
            "set_policy",
            "Approves a proposed policy and puts it in force.",
            json!({ "proposal_id": id("question about the proposal") }),
            &["proposal_id"],
            None,
            Hints::WRITES,
        ),
        tool(
            "set_policy_text",
            "Puts a policy (Rego) in force in place of the one that \
             resource://approval-policy/policy.rego contains.",
            json!({ "source": source() }),
            &["source"],
            Some(json!({ "bundle": { "type": "string" }, "digest": { "type": "string" } })),
            Hints::WRITES,
        ),
    ]
}

fn source() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "description": format!("The whole text of the policy, of at most {MAX_SOURCE} bytes."),
    })
}

/// What a tool does to its environment.
#[derive(Clone, Copy)]
struct Hints {
    reads: bool,
}

impl Hints {
    const READS: Self = Self { reads: true };
    const WRITES: Self = Self { reads: false };
}

fn tool(
    name: &str,
    description: &str,
    properties: Value,
    required: &[&str],
    output: Option<Value>,
    hints: Hints,
) -> Value {
    let mut tool = json!({
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        },
        // What a policy server is told stays on this machine.
        "annotations": {
            "readOnlyHint": hints.reads,
            "destructiveHint": !hints.reads,
            "openWorldHint": false,
        },
    });
    if let (Some(output), Some(tool)) = (output, tool.as_object_mut()) {
        let output: &Value = &output;
        let names = output.as_object().into_iter().flat_map(|all| all.keys());
        let schema = json!({
            "type": "object",
            "properties": output,
            "required": names.collect::<Vec<_>>(),
        });
        tool.insert("outputSchema".to_owned(), schema);
    }
    tool
}

/// The URI of the policy in force.
pub fn policy_uri(file_name: &str) -> String {
    format!("resource://approval-policy/{file_name}")
}

/// The resources of a server.
pub fn resources(server: PolicyServer, file_name: &str) -> Vec<Value> {
    match server {
        PolicyServer::Reader { .. } => vec![json!({
            "uri": policy_uri(file_name),
            "name": file_name,
            "title": "The policy in force",
            "mimeType": "text/plain",
        })],
        PolicyServer::Approver | PolicyServer::Proposer | PolicyServer::Loop => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use addons::mcp::PolicyServer;
    use testkit::each_row;

    use super::*;

    #[test]
    fn each_server_lists_its_tools_with_closed_schemas_and_hints() {
        let reader = |decides| PolicyServer::Reader { decides };
        each_row(
            [
                (reader(false), &[][..]),
                (reader(true), &["decide"]),
                (
                    PolicyServer::Approver,
                    &["approve", "deny", "set_policy", "set_policy_text"],
                ),
                (PolicyServer::Proposer, &["propose_policy"]),
                (PolicyServer::Loop, &["yield_turn"]),
            ],
            |(server, names)| {
                let tools = tools(server, false);
                let listed: Vec<_> = tools.iter().map(|tool| &tool["name"]).collect();
                assert_eq!(listed, names);
                for tool in &tools {
                    assert_eq!(tool["inputSchema"]["additionalProperties"], false);
                    assert_eq!(tool["annotations"]["openWorldHint"], false);
                }
            },
        );
    }

    #[test]
    fn a_person_names_the_container_about_whose_call_the_policies_decide() {
        let decide = |for_people| tools(PolicyServer::Reader { decides: true }, for_people);
        let required = |tools: &[Value]| tools[0]["inputSchema"]["required"].clone();
        assert_eq!(required(&decide(false)), json!(["name"]));
        assert_eq!(required(&decide(true)), json!(["name", "container"]));
    }
}
