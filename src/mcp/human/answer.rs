//! The answers to the requests of people.

use std::sync::Arc;

use addons::contract::{ApprovalId, Code, Denial, RpcError};
use addons::json::Members;
use addons::mcp::PolicyServer;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::core::for_modern_client;
use super::super::error::{
    INVALID_PARAMS, SERVER_ERROR, UNSUPPORTED_VERSION, method_not_found, protocol_error, raw,
    rpc_error,
};
use super::super::implementation::implementation;
use super::super::message::Outcome;
use super::super::mounts::{
    contents, failed, members_of, policy_tools, policy_uri, resource_not_found, resources,
    structured, text_argument,
};
use super::super::version::{Era, Version};
use super::{Act, Decisions, People};
use crate::runtime::{printable, printable_json, printable_lines};

/// The beginning of the URI of an open question.
const PENDING: &str = "approvals://pending/";
/// The member of `_meta` with which a modern request names its revision.
const NAMED_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The longest name that an error quotes, in bytes.
const MAX_QUOTED: usize = 256;

pub(super) fn internal() -> RpcError {
    protocol_error(SERVER_ERROR, "Internal error")
}

impl People {
    /// Answers in the era of the request: the modern one if `_meta` names a revision.
    pub(super) async fn answer(
        &self,
        by: Arc<str>,
        method: Arc<str>,
        params: Option<&RawValue>,
    ) -> Outcome {
        let members = params.map(Members::read).transpose();
        let members = members.map_err(|_| invalid("params is not an object"))?;
        let members = members.unwrap_or_default();
        let era = era(&members)?;
        let decisions = self
            .decisions
            .get()
            .and_then(|decisions| decisions.upgrade());
        let decisions =
            decisions.ok_or_else(|| protocol_error(SERVER_ERROR, "the server starts or stops"))?;
        let named = members.text("name").or_else(|| members.text("uri"));
        decisions.received(&by, quoted(&method), named.as_deref().map(quoted));
        let servers = self.servers();
        let outcome = match (&*method, era) {
            ("initialize", Era::Legacy) => initialized(&members, &servers),
            ("server/discover", Era::Modern) => discovered(&servers),
            ("ping", Era::Legacy) => object(json!({})),
            ("tools/list", _) => object(json!({ "tools": tools(&servers) })),
            ("tools/call", _) => self.call(&*decisions, by, &members, &servers).await,
            ("resources/list", _) if reads(&servers) => self.list_resources(&*decisions).await,
            ("resources/templates/list", _) if reads(&servers) => {
                let template = json!({
                    "uriTemplate": format!("{PENDING}{{id}}"),
                    "name": "pending approval",
                    "mimeType": "application/json",
                });
                object(json!({ "resourceTemplates": [template] }))
            }
            ("resources/read", _) if reads(&servers) => {
                let uri = members
                    .text("uri")
                    .ok_or_else(|| invalid("uri is missing"))?;
                self.read(&*decisions, &uri).await
            }
            (method, _) => Err(method_not_found(quoted(method))),
        };
        let is_cacheable = &*method != "tools/call";
        match era {
            Era::Legacy => outcome,
            Era::Modern => for_modern_client(outcome, is_cacheable),
        }
    }

    /// The mounted servers that people see.
    fn servers(&self) -> Vec<PolicyServer> {
        let snapshot = self.desk.keeper.current();
        let mounted = snapshot.config.addons.mcp.policies.servers.iter();
        mounted
            .copied()
            .filter(|server| server.is_for_people())
            .collect()
    }

    async fn list_resources(&self, decisions: &dyn Decisions) -> Outcome {
        let pending = decisions.pending().await;
        let pending = pending.map_err(|why| protocol_error(SERVER_ERROR, why))?;
        let reader = PolicyServer::Reader { decides: false };
        let mut listed = resources(reader, self.desk.file_name());
        for question in pending {
            let text = |key: &str| {
                question
                    .get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            listed.push(json!({
                "uri": format!("{PENDING}{}", text("id")),
                "name": printable(&format!("{} {}", text("kind"), text("subject"))),
                "mimeType": "application/json",
            }));
        }
        object(json!({ "resources": listed }))
    }

    async fn read(&self, decisions: &dyn Decisions, uri: &str) -> Outcome {
        if uri == policy_uri(self.desk.file_name()) {
            return match self.desk.policy() {
                Ok(text) => contents(uri, "text/plain", &printable_lines(&text)),
                Err(why) => Err(protocol_error(SERVER_ERROR, why)),
            };
        }
        let id = uri.strip_prefix(PENDING).and_then(ApprovalId::parse);
        let found = match id {
            Some(id) => decisions.question(id).await,
            None => Ok(None),
        };
        match found.map_err(|why| protocol_error(SERVER_ERROR, why))? {
            Some(question) => {
                let text = question.to_string();
                contents(uri, "application/json", &printable_json(&text))
            }
            None => Err(resource_not_found(quoted(uri))),
        }
    }

    async fn call(
        &self,
        decisions: &dyn Decisions,
        by: Arc<str>,
        members: &Members<'_>,
        servers: &[PolicyServer],
    ) -> Outcome {
        let named = members.text("name");
        let named = named.ok_or_else(|| invalid("the name of the tool is missing"))?;
        let is_listed = |tool: &Value| tool.get("name").and_then(Value::as_str) == Some(&*named);
        if !tools(servers).iter().any(is_listed) {
            return Err(unknown_tool(&named));
        }
        let arguments = members.get("arguments").map(str::to_owned);
        let arguments = arguments.map(RawValue::from_string).transpose();
        let arguments = arguments.map_err(|_| internal())?;
        let arguments = arguments.as_deref();
        let id_of = |key| -> Result<ApprovalId, RpcError> {
            let text = text_argument(&members_of(arguments, &[key])?, key)?;
            ApprovalId::parse(&text)
                .ok_or_else(|| invalid("an id has 32 digits of 0 to 9 and a to f"))
        };
        let act = match &*named {
            "policy_approver_approve" => Act::Approve(id_of("id")?),
            "policy_approver_deny" => Act::Deny(id_of("id")?),
            "policy_approver_set_policy" => Act::SetPolicy(id_of("proposal_id")?),
            "policy_approver_set_policy_text" => {
                let members = members_of(arguments, &["source"])?;
                Act::SetPolicyText(text_argument(&members, "source")?)
            }
            "policy_reader_decide" => {
                let members = members_of(arguments, &["name", "arguments", "container"])?;
                let tool = text_argument(&members, "name")?;
                let container = text_argument(&members, "container")?;
                return match decisions.container(&container) {
                    Ok(container) => self.desk.decide(container, tool, &members).await,
                    Err(why) => failed(&why),
                };
            }
            _ => return Err(unknown_tool(&named)),
        };
        match decisions.act(Arc::clone(&by), act).await {
            Ok(done) => structured(&printable_value(done)),
            Err(why) => {
                decisions.refused(&by, &named, quoted(&why));
                failed(&printable_lines(&why))
            }
        }
    }
}

/// A JSON value in whose texts no character changes how a terminal shows the others: the client of a
/// person undoes the escapes of JSON.
fn printable_value(value: Value) -> Value {
    match value {
        Value::String(text) => printable_lines(&text).into(),
        Value::Array(values) => values.into_iter().map(printable_value).collect(),
        Value::Object(members) => {
            let members = members.into_iter();
            let members = members.map(|(key, value)| (printable(&key), printable_value(value)));
            members.collect()
        }
        other => other,
    }
}

/// The era of a request. Refuses a revision that the gateway does not support.
fn era(params: &Members<'_>) -> Result<Era, RpcError> {
    let meta = params.members("_meta");
    let meta = meta.map_err(|_| invalid("_meta is not an object"))?;
    let Some(meta) = meta.filter(|meta| meta.get(NAMED_VERSION).is_some()) else {
        return Ok(Era::Legacy);
    };
    let named = meta.text(NAMED_VERSION).unwrap_or_default();
    let modern = Version::parse(&named).filter(|version| version.era() == Era::Modern);
    modern.map(Version::era).ok_or_else(|| RpcError {
        data: raw(json!({
            "supported": Version::ALL.map(Version::as_str),
            "requested": quoted(&named),
        })),
        ..protocol_error(UNSUPPORTED_VERSION, "Unsupported protocol version")
    })
}

/// Whether the mounted servers have resources.
fn reads(servers: &[PolicyServer]) -> bool {
    let is_reader = |server: &PolicyServer| matches!(server, PolicyServer::Reader { .. });
    servers.iter().any(is_reader)
}

/// The tools under their exposed names.
fn tools(servers: &[PolicyServer]) -> Vec<Value> {
    let mut all = Vec::new();
    for server in servers {
        for mut tool in policy_tools(*server, true) {
            let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
            let exposed = format!("{}_{name}", server.name());
            if let Some(tool) = tool.as_object_mut() {
                tool.insert("name".to_owned(), exposed.into());
            }
            all.push(tool);
        }
    }
    all
}

fn capabilities(servers: &[PolicyServer]) -> Value {
    let mut capabilities = Map::new();
    if !tools(servers).is_empty() {
        capabilities.insert("tools".to_owned(), json!({}));
    }
    if reads(servers) {
        capabilities.insert("resources".to_owned(), json!({}));
    }
    capabilities.into()
}

fn initialized(params: &Members<'_>, servers: &[PolicyServer]) -> Outcome {
    let requested = params.text("protocolVersion").unwrap_or_default();
    let known = Version::parse(&requested).filter(|version| version.era() == Era::Legacy);
    object(json!({
        "protocolVersion": known.unwrap_or(Version::NEWEST_LEGACY).as_str(),
        "capabilities": capabilities(servers),
        "serverInfo": implementation(),
    }))
}

fn discovered(servers: &[PolicyServer]) -> Outcome {
    object(json!({
        "supportedVersions": Version::ALL.map(Version::as_str),
        "capabilities": capabilities(servers),
        "_meta": { "io.modelcontextprotocol/serverInfo": implementation() },
    }))
}

/// The error for an unknown tool, as for containers.
fn unknown_tool(name: &str) -> RpcError {
    let name = quoted(name);
    let denial = Denial::new(Code::ToolNotFound, format!("Unknown tool: {name}"));
    rpc_error(&denial.with("tool", name))
}

fn quoted(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_QUOTED))
        .unwrap_or_default()
}

fn invalid(why: &str) -> RpcError {
    protocol_error(INVALID_PARAMS, format!("Invalid params: {why}"))
}

fn object(value: Value) -> Outcome {
    raw(value).ok_or_else(internal)
}
