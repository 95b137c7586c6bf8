//! Reads `_meta` of a request: its revision, and the capabilities of its client.

use addons::contract::RpcError;
use http::HeaderMap;
use serde_json::json;

use super::super::super::caller::LogLevel;
use super::super::super::error::{INVALID_PARAMS, UNSUPPORTED_VERSION, protocol_error, raw};
use super::super::super::message::text;
use super::super::super::version::{Era, Version};
use super::super::capabilities;
use super::super::visit::ClientDescription;
use super::headers;
use super::params::{ModernParams, VERSION};

const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Reads the description of the client. Compares the headers with the body first: a mismatch is
/// reported rather than an unsupported revision or invalid capabilities.
pub fn read(
    headers: &HeaderMap,
    method: &str,
    params: &ModernParams<'_>,
) -> Result<ClientDescription, RpcError> {
    let Some(meta) = &params.meta else {
        return Err(invalid("params._meta is missing, or not an object"));
    };
    let version = meta.version.ok_or_else(|| missing(VERSION))?;
    let capabilities = meta.capabilities.ok_or_else(|| missing(CAPABILITIES))?;
    let Some(version) = text(version) else {
        return Err(invalid(&format!("params._meta: {VERSION} is not a string")));
    };
    headers::check(headers, &version, method, params)?;
    let known = Version::parse(&version).filter(|version| version.era() == Era::Modern);
    let version = known.ok_or_else(|| unsupported(&version))?;
    let log_level = meta.log_level.and_then(text);
    Ok(ClientDescription {
        version,
        capabilities: capabilities::read(capabilities)?,
        info: meta.info.map(capabilities::read_info).transpose()?,
        session: None,
        log_level: log_level.and_then(|level| LogLevel::parse(&level)),
        takes_tasks: capabilities::declare_tasks(capabilities),
    })
}

/// The error for an unknown revision, or for a legacy one.
pub fn unsupported(requested: &str) -> RpcError {
    let supported = Version::ALL.map(Version::as_str);
    RpcError {
        data: raw(json!({ "supported": supported, "requested": requested })),
        ..protocol_error(UNSUPPORTED_VERSION, "Unsupported protocol version")
    }
}

fn missing(key: &str) -> RpcError {
    invalid(&format!("params._meta: {key} is missing"))
}

fn invalid(message: &str) -> RpcError {
    protocol_error(INVALID_PARAMS, format!("Invalid params: {message}"))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use serde_json::Value;
    use serde_json::value::RawValue;
    use testkit::each_row;

    use super::super::super::super::error::HEADER_MISMATCH;
    use super::*;

    fn code(version: &'static str, params: Value) -> i64 {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("mcp-protocol-version", version),
            ("mcp-method", "tools/list"),
        ] {
            let name = HeaderName::from_static(name);
            headers.insert(name, HeaderValue::from_static(value));
        }
        let params = RawValue::from_string(params.to_string()).unwrap();
        let params = ModernParams::read(Some(&params));
        read(&headers, "tools/list", &params)
            .err()
            .map_or(0, |error| error.code)
    }

    #[test]
    fn a_request_must_name_a_modern_revision_and_the_clients_capabilities() {
        let meta = |version: Value| json!({ "_meta": { VERSION: version, CAPABILITIES: {} } });
        each_row(
            [
                ("2026-07-28", meta("2026-07-28".into()), 0),
                ("2026-07-28", json!({}), INVALID_PARAMS),
                ("2026-07-28", json!([{ "_meta": {} }]), INVALID_PARAMS),
                ("2026-07-28", json!({ "_meta": [] }), INVALID_PARAMS),
                (
                    "2026-07-28",
                    json!({ "_meta": { CAPABILITIES: {} } }),
                    INVALID_PARAMS,
                ),
                (
                    "2026-07-28",
                    json!({ "_meta": { VERSION: "2026-07-28" } }),
                    INVALID_PARAMS,
                ),
                (
                    "2026-07-28",
                    json!({ "_meta": { VERSION: "2026-07-28", CAPABILITIES: [] } }),
                    INVALID_PARAMS,
                ),
                ("2026-07-28", meta(1.into()), INVALID_PARAMS),
                ("2026-07-28", meta("v999.0.0".into()), HEADER_MISMATCH),
                ("v999.0.0", meta("v999.0.0".into()), UNSUPPORTED_VERSION),
                // A legacy revision.
                ("2025-11-25", meta("2025-11-25".into()), UNSUPPORTED_VERSION),
            ],
            |(version, params, expected)| assert_eq!(code(version, params), expected),
        );
    }

    #[test]
    fn the_error_for_an_unsupported_revision_lists_the_supported_ones() {
        let error = unsupported("v999.0.0");
        let data: Value = serde_json::from_str(error.data.unwrap().get()).unwrap();
        assert_eq!(data["requested"], "v999.0.0");
        assert_eq!(data["supported"][0], "2026-07-28");
    }
}
