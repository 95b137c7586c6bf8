//! `server/discover`.

use std::sync::Arc;

use addons::contract::RpcError;
use serde_json::json;
use serde_json::value::RawValue;

use super::super::super::caller::Caller;
use super::super::super::error::{SERVER_ERROR, protocol_error, raw};
use super::super::super::message::Outcome;
use super::super::super::version::Version;
use super::super::identity::server_info;
use super::super::visit::Visit;

/// How long the answer may be kept, in milliseconds. Servers come and go without a word to those
/// who do not listen.
const TTL_MS: u32 = 0;

/// Says what there is.
pub async fn answer(
    visit: &Visit<'_>,
    caller: Arc<Caller>,
    params: Option<Box<RawValue>>,
) -> Outcome {
    let mut live = visit.judge("server/discover", params).await?;
    let described = visit.gateway.backend.describe(&caller).await;
    live.complete();
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": Version::ALL.map(Version::as_str),
        "capabilities": described.capabilities,
        "ttlMs": TTL_MS,
        // What a container may see is its own affair.
        "cacheScope": "private",
        "_meta": { "io.modelcontextprotocol/serverInfo": server_info() },
    });
    if let (Some(instructions), Some(result)) = (described.instructions, result.as_object_mut()) {
        result.insert("instructions".into(), instructions.into());
    }
    raw(result).ok_or_else(unwritten)
}

fn unwritten() -> RpcError {
    protocol_error(SERVER_ERROR, "the answer cannot be written")
}
