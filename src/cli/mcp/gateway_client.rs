//! Sends requests to the gateway, as the container that the command runs in, or as an operator on
//! behalf of a container.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{ContainerId, RpcError};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::http_client::{HttpClient, HttpError, HttpResponse, MAX_MESSAGE};
use super::rpc::{MAX_PAGES, next_cursor, own_meta, refusal};
use crate::cli::client::Client;
use crate::cli::exit::{Failure, code};
use crate::mcp::{
    EventReader, Id, Message, Outcome, SERVERS_META, Version, add_param_fields, request_fields,
    write_request,
};

/// Time limit of a request by an operator. Longer than the gateway's default limit for a call (15
/// min).
const OPERATOR_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// Sends requests to a gateway.
pub enum GatewayClient {
    /// As the container that the command runs in.
    Container(Arc<HttpClient>),
    /// As an operator.
    Operator { client: Client, id: ContainerId },
}

/// The tools that a container sees.
#[derive(Default)]
pub struct Listed {
    /// Their definitions.
    pub tools: Vec<Value>,
    /// The states of all servers; empty if all are ready and no host was refused to them.
    pub servers: Map<String, Value>,
}

impl GatewayClient {
    pub fn operator(client: Client, id: &ContainerId) -> Self {
        Self::Operator {
            client: client.with_timeout(OPERATOR_TIMEOUT),
            id: id.clone(),
        }
    }

    /// Lists the tools that the container sees. Tools after the first [`MAX_PAGES`] pages are
    /// missing.
    pub async fn list(&self) -> Result<Listed, Failure> {
        let mut listed = Listed::default();
        let mut params = json!({});
        for _ in 0..MAX_PAGES {
            let result = self.request("tools/list", &params, None).await?;
            let page = serde_json::from_str(result.get());
            let page: Value = page.map_err(Failure::internal)?;
            if let Some(Value::Array(page)) = page.get("tools") {
                listed.tools.extend_from_slice(page);
            }
            let servers = page.get("_meta").and_then(|meta| meta.get(SERVERS_META));
            if let Some(Value::Object(servers)) = servers {
                listed.servers.clone_from(servers);
            }
            match next_cursor(&result) {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => break,
            }
        }
        Ok(listed)
    }

    /// Calls a tool and returns the result. A JSON-RPC error is a [`Failure`], with the reason if a
    /// policy denied the call.
    pub async fn call(&self, name: &str, arguments: &Map<String, Value>) -> Result<Value, Failure> {
        let tool = match self {
            // The definition determines which arguments are mirrored in header fields.
            Self::Container(_) => self
                .list()
                .await?
                .tools
                .into_iter()
                .find(|tool| tool.get("name").and_then(Value::as_str) == Some(name)),
            Self::Operator { .. } => None,
        };
        let tool = tool.and_then(|tool| to_raw_value(&tool).ok());
        let params = json!({ "name": name, "arguments": arguments });
        let result = self.request("tools/call", &params, tool.as_deref()).await?;
        serde_json::from_str(result.get()).map_err(Failure::internal)
    }

    async fn request(
        &self,
        method: &str,
        params: &Value,
        tool: Option<&RawValue>,
    ) -> Result<Box<RawValue>, Failure> {
        let outcome = match self {
            Self::Container(http) => post_request(http, method, params, tool).await?,
            Self::Operator { client, id } => {
                let body = json!({
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": method,
                    "params": params,
                });
                let response = client.mcp(id.as_str(), &body).await?;
                match Message::parse(response.to_string().as_bytes(), usize::MAX) {
                    Ok(Message::Response { outcome, .. }) => outcome,
                    _ => {
                        let message = "the server's response is not a JSON-RPC response";
                        return Err(Failure::internal(message));
                    }
                }
            }
        };
        outcome.map_err(|error| denied(&error))
    }
}

async fn post_request(
    http: &Arc<HttpClient>,
    method: &str,
    params: &Value,
    tool: Option<&RawValue>,
) -> Result<Outcome, Failure> {
    let mut params = params.clone();
    if let Some(params) = params.as_object_mut() {
        params.insert("_meta".to_owned(), own_meta());
    }
    let params = to_raw_value(&params).map_err(Failure::internal)?;
    let version = HeaderValue::from_static(Version::V2026_07_28.as_str());
    let mut fields: HeaderMap = request_fields(version, method, Some(&params));
    if let Some(tool) = tool {
        let added = add_param_fields(tool, Some(&params), &mut fields);
        added.map_err(|error| Failure::new(code::USAGE, error))?;
    }
    let id = Id::number(1);
    let text = write_request(Some(&id), method, Some(&params));
    let response = http.post(fields, text.into()).await.map_err(unreachable)?;
    match response.status == StatusCode::OK && response.is_stream() {
        true => read_stream(response, &id).await,
        false => {
            let status = response.status;
            let body = response.whole().await.map_err(unreachable)?;
            Ok(match Message::parse(&body, usize::MAX) {
                Ok(Message::Response { outcome, .. }) => outcome,
                _ => Err(refusal(status, &body)),
            })
        }
    }
}

/// Reads the stream of a request up to the response, and returns the response. Skips other
/// messages. Fails if the stream ends before the response.
async fn read_stream(mut response: HttpResponse, id: &Id) -> Result<Outcome, Failure> {
    let mut reader = EventReader::new(MAX_MESSAGE);
    while let Some(mut piece) = response.piece().await.map_err(unreachable)? {
        while let Some(event) = reader.next(&mut piece).map_err(Failure::internal)? {
            if let Ok(Message::Response { id: of, outcome }) =
                Message::parse(&event.data, usize::MAX)
                && of.as_ref() == Some(id)
            {
                return Ok(outcome);
            }
        }
    }
    Err(Failure::new(
        code::UNAVAILABLE,
        "the gateway closed the connection before it answered",
    ))
}

fn unreachable(error: HttpError) -> Failure {
    Failure::new(code::UNAVAILABLE, error)
}

/// Converts a JSON-RPC error to a failure, with the reason if the message lacks it.
fn denied(error: &RpcError) -> Failure {
    let data = error.data.as_deref().map(RawValue::get);
    let data: Option<Value> = data.and_then(|data| serde_json::from_str(data).ok());
    let reason = data.as_ref().and_then(|data| data.get("reason"));
    let message = match reason.and_then(Value::as_str) {
        Some(reason) if !error.message.contains(reason) => {
            format!("{}: {reason} ({})", error.message, error.code)
        }
        _ => format!("{} ({})", error.message, error.code),
    };
    Failure::new(code::DENIED, message)
}
