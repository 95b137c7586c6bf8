//! The handshake of legacy revisions: `initialize`.

use std::sync::Arc;

use addons::contract::RpcError;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::super::super::caller::Caller;
use super::super::super::error::{INVALID_PARAMS, SERVER_ERROR, protocol_error, raw};
use super::super::super::implementation::implementation;
use super::super::super::message::Outcome;
use super::super::super::version::{Era, Version};
use super::super::capabilities;
use super::super::visit::{ClientDescription, Visit};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams<'a> {
    protocol_version: String,
    #[serde(borrow)]
    capabilities: &'a RawValue,
    #[serde(borrow)]
    client_info: Option<&'a RawValue>,
}

/// Reads the params of `initialize`. The client gets the revision that it requests or, if that is
/// unknown or modern, the newest legacy one.
pub fn read(
    visit: &Visit<'_>,
    params: Option<&RawValue>,
    session_id: &Arc<str>,
) -> Result<Arc<Caller>, RpcError> {
    let invalid = |why: String| protocol_error(INVALID_PARAMS, format!("initialize: {why}"));
    let text = params.map_or("", RawValue::get);
    if !text.starts_with('{') {
        return Err(invalid("params must be an object".to_owned()));
    }
    let params: InitializeParams<'_> =
        serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
    let info = params
        .client_info
        .map(capabilities::read_info)
        .transpose()?;
    Ok(visit.caller(ClientDescription {
        version: negotiate(&params.protocol_version),
        capabilities: capabilities::read(params.capabilities)?,
        info,
        session: Some(Arc::clone(session_id)),
        log_level: None,
        takes_tasks: false,
    }))
}

/// The result of `initialize`.
pub async fn answer(visit: &Visit<'_>, caller: &Arc<Caller>) -> Outcome {
    let described = visit.gateway.core.describe(caller).await;
    let mut result = json!({
        "protocolVersion": caller.version.as_str(),
        "capabilities": described.capabilities,
        "serverInfo": implementation(),
    });
    if let (Some(instructions), Some(result)) = (described.instructions, result.as_object_mut()) {
        result.insert("instructions".into(), instructions.into());
    }
    let failed = || protocol_error(SERVER_ERROR, "initialize: the result cannot be serialized");
    raw(result).ok_or_else(failed)
}

fn negotiate(requested: &str) -> Version {
    let known = Version::parse(requested).filter(|version| version.era() == Era::Legacy);
    known.unwrap_or(Version::NEWEST_LEGACY)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_client_gets_the_requested_revision_or_the_newest_legacy_one() {
        each_row(
            [
                ("2024-11-05", "2024-11-05"),
                ("2025-03-26", "2025-03-26"),
                ("2025-06-18", "2025-06-18"),
                ("2025-11-25", "2025-11-25"),
                ("2026-07-28", "2025-11-25"),
                ("1900-01-01", "2025-11-25"),
                ("", "2025-11-25"),
            ],
            |(asked, given)| assert_eq!(negotiate(asked).as_str(), given),
        );
    }
}
