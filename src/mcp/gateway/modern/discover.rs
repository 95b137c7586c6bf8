//! `server/discover`.

use std::sync::Arc;

use serde_json::json;
use serde_json::value::RawValue;

use super::super::super::caller::Caller;
use super::super::super::error::{SERVER_ERROR, protocol_error, raw};
use super::super::super::implementation::implementation;
use super::super::super::message::Outcome;
use super::super::super::version::Version;
use super::super::visit::Visit;

/// How long clients may cache the response, in milliseconds: not at all, since only subscribers are
/// notified of added and removed servers.
const TTL_MS: u32 = 0;

/// Answers with the gateway's revisions and capabilities.
pub async fn answer(
    visit: &Visit<'_>,
    caller: Arc<Caller>,
    params: Option<Box<RawValue>>,
) -> Outcome {
    let mut live = visit.judge("server/discover", params).await?;
    let described = visit.gateway.core.describe(&caller).await;
    live.complete();
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": Version::ALL.map(Version::as_str),
        "capabilities": described.capabilities,
        "ttlMs": TTL_MS,
        // Containers see different servers.
        "cacheScope": "private",
        "_meta": { "io.modelcontextprotocol/serverInfo": implementation() },
    });
    if let (Some(instructions), Some(result)) = (described.instructions, result.as_object_mut()) {
        result.insert("instructions".into(), instructions.into());
    }
    raw(result).ok_or_else(|| protocol_error(SERVER_ERROR, "the answer cannot be written"))
}
