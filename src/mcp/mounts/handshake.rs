//! The handshake of a session: `initialize` up to 2025-11-25, `server/discover` from 2026-07-28 on.

use std::borrow::Cow;

use addons::contract::RpcError;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Described, MountError};
use crate::mcp::error::{HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION};
use crate::mcp::implementation::implementation;
use crate::mcp::message::text;
use crate::mcp::tasks::without_tasks;
use crate::mcp::version::{Era, Version};
use crate::mcp::warnings::{deviates, excerpt};

/// Error codes that only 2026-07-28 and later revisions define.
const MODERN_ERRORS: [i64; 3] = [
    HEADER_MISMATCH,
    MISSING_CLIENT_CAPABILITY,
    UNSUPPORTED_VERSION,
];

/// The longest instructions that are kept, in bytes; longer ones are cut. Each session keeps the
/// server's description of itself, which is not charged.
pub const MAX_INSTRUCTIONS: usize = 16 << 10;
/// The longest capabilities, in bytes. Longer ones fail the handshake.
const MAX_CAPABILITIES: usize = 64 << 10;
/// The members of capabilities that are `true` or `false`.
const FLAGS: [&str; 2] = ["listChanged", "subscribe"];
/// The longest `serverInfo` that is kept, in bytes.
const MAX_INFO: usize = 4 << 10;

/// The `_meta` of a request that the gateway itself sends in the modern era.
pub fn request_meta(version: Version, capabilities: &RawValue) -> Value {
    // The gateway parsed the capabilities when the client sent them, so this never fails.
    let capabilities = serde_json::from_str(capabilities.get()).unwrap_or_else(|_| json!({}));
    json!({
        "io.modelcontextprotocol/protocolVersion": version.as_str(),
        "io.modelcontextprotocol/clientInfo": implementation(),
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

/// The params of `initialize`.
pub fn initialize_params(
    version: Version,
    capabilities: &RawValue,
) -> Result<Box<RawValue>, MountError> {
    raw(format!(
        "{{\"protocolVersion\":\"{}\",\"capabilities\":{capabilities},\"clientInfo\":{}}}",
        version.as_str(),
        implementation(),
    ))
}

/// The params of `server/discover`.
pub fn discover_params(capabilities: &RawValue) -> Result<Box<RawValue>, MountError> {
    let meta = request_meta(Version::V2026_07_28, capabilities);
    raw(json!({ "_meta": meta }).to_string())
}

fn raw(text: String) -> Result<Box<RawValue>, MountError> {
    RawValue::from_string(text).map_err(|error| MountError::Protocol(error.to_string()))
}

/// Reads the result of `initialize`. Fails if the revision in the result is unknown or modern.
pub fn read_initialized(server: &str, result: &RawValue) -> Result<Described, MountError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Text {
        protocol_version: String,
        capabilities: Option<Box<RawValue>>,
        server_info: Option<Box<RawValue>>,
        instructions: Option<Box<RawValue>>,
    }
    let text: Text = read_result("initialize", result)?;
    let version = Version::parse(&text.protocol_version);
    let version = version.filter(|version| version.era() == Era::Legacy);
    let version = version.ok_or_else(|| {
        let named: String = text.protocol_version.chars().take(32).collect();
        MountError::Protocol(format!(
            "the server answered initialize with revision {named:?}, which the gateway does not \
             support with initialize"
        ))
    })?;
    described(
        server,
        version,
        text.capabilities,
        text.server_info,
        text.instructions,
    )
}

/// The server's description of itself, within bounds.
fn described(
    server: &str,
    version: Version,
    capabilities: Option<Box<RawValue>>,
    info: Option<Box<RawValue>>,
    instructions: Option<Box<RawValue>>,
) -> Result<Described, MountError> {
    let instructions = instructions.and_then(|raw| {
        let read = text(&raw).map(Cow::into_owned);
        if read.is_none() {
            deviates(server, "its instructions are no text");
        }
        read
    });
    let instructions = instructions.map(|mut text| {
        text.truncate(text.floor_char_boundary(MAX_INSTRUCTIONS));
        text.shrink_to_fit();
        text
    });
    Ok(Described {
        version,
        capabilities: declared(server, capabilities)?,
        server_info: info.filter(|info| info.get().len() <= MAX_INFO),
        instructions,
    })
}

/// The result of `server/discover`.
pub struct Discovered {
    /// The revisions that both the server and the gateway support, newest first.
    pub versions: Vec<Version>,
    /// The server's capabilities, name and instructions, for a session of 2026-07-28.
    pub described: Described,
}

impl Discovered {
    /// Reads the result of `server/discover`.
    pub fn read(server: &str, result: &RawValue) -> Result<Self, MountError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Text {
            supported_versions: Vec<String>,
            capabilities: Option<Box<RawValue>>,
            server_info: Option<Box<RawValue>>,
            instructions: Option<Box<RawValue>>,
            #[serde(rename = "_meta")]
            meta: Option<Meta>,
        }
        #[derive(Deserialize)]
        struct Meta {
            #[serde(rename = "io.modelcontextprotocol/serverInfo")]
            server_info: Option<Box<RawValue>>,
        }
        let text: Text = read_result("server/discover", result)?;
        let in_meta = text.meta.and_then(|meta| meta.server_info);
        Ok(Self {
            versions: known(&text.supported_versions),
            described: described(
                server,
                Version::V2026_07_28,
                text.capabilities,
                in_meta.or(text.server_info),
                text.instructions,
            )?,
        })
    }
}

/// Converts the JSON-RPC error with which a server answered a request of a handshake.
pub fn refused(method: &str, error: &RpcError) -> MountError {
    let message = excerpt(&error.message);
    MountError::Protocol(format!("the server refused {method}: {message}"))
}

/// The revisions of a server, as far as an error of the server reveals them.
pub enum Refusal {
    /// The revisions that both the server and the gateway support, newest first.
    Supported(Vec<Version>),
    /// The server is modern, but the error does not list its revisions.
    Modern,
    /// The error does not reveal the era.
    Other,
}

impl Refusal {
    /// Reads a server's error response to `server/discover` or `initialize`.
    pub fn of(error: &RpcError) -> Self {
        #[derive(Deserialize)]
        struct Supported {
            supported: Vec<String>,
        }
        let data = error.data.as_deref().map(RawValue::get).unwrap_or("null");
        let supported = serde_json::from_str::<Supported>(data);
        match supported {
            Ok(data) if error.code == UNSUPPORTED_VERSION => {
                Self::Supported(known(&data.supported))
            }
            _ if MODERN_ERRORS.contains(&error.code) => Self::Modern,
            _ => Self::Other,
        }
    }
}

/// The revisions in `versions` that the gateway supports, newest first.
fn known(versions: &[String]) -> Vec<Version> {
    let is_named = |version: &Version| versions.iter().any(|text| text == version.as_str());
    Version::ALL.into_iter().filter(is_named).collect()
}

fn read_result<'a, T: Deserialize<'a>>(
    method: &str,
    result: &'a RawValue,
) -> Result<T, MountError> {
    serde_json::from_str(result.get()).map_err(|error| {
        MountError::Protocol(format!(
            "the server answered {method} with an invalid result: {}",
            // The error may quote a text of any length.
            excerpt(&error.to_string())
        ))
    })
}

/// Reads the capabilities of a server, without tasks; `{}` if it declares none.
fn declared(
    server: &str,
    capabilities: Option<Box<RawValue>>,
) -> Result<Box<RawValue>, MountError> {
    let Some(capabilities) = capabilities else {
        deviates(server, "it declares no capabilities, so it has no lists");
        return raw("{}".to_owned());
    };
    if capabilities.get().len() > MAX_CAPABILITIES {
        let why = format!("the server's capabilities are longer than {MAX_CAPABILITIES} bytes");
        return Err(MountError::Protocol(why));
    }
    without_tasks(regular(server, capabilities)?)
        .map_err(|error| MountError::Protocol(error.to_string()))
}

/// Brings capabilities into the form of the protocol: an object of objects. A capability that is
/// `null` or `false` is absent, and one that is another value is `{}`. Of the members that are
/// flags, only those that are `true` or `false` are kept.
fn regular(server: &str, capabilities: Box<RawValue>) -> Result<Box<RawValue>, MountError> {
    let Ok(mut all) = serde_json::from_str::<Map<String, Value>>(capabilities.get()) else {
        deviates(server, "its capabilities are not an object");
        return raw("{}".to_owned());
    };
    let mut is_changed = false;
    all.retain(|_, capability| {
        match capability {
            Value::Object(members) => members.retain(|name, flag| {
                let is_kept = flag.is_boolean() || !FLAGS.contains(&name.as_str());
                is_changed |= !is_kept;
                is_kept
            }),
            Value::Null | Value::Bool(false) => {
                is_changed = true;
                return false;
            }
            _ => {
                is_changed = true;
                *capability = json!({});
            }
        }
        true
    });
    if !is_changed {
        return Ok(capabilities);
    }
    deviates(
        server,
        "a capability is not an object, or its flags are neither true nor false",
    );
    raw(Value::Object(all).to_string())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn json(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn an_initialize_result_is_read_without_tasks() {
        let result = json(
            r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},
            "tasks":{"list":{}},"extensions":{"io.modelcontextprotocol/tasks":{},"x/y":{}}},
            "serverInfo":{"name":"s"},"instructions":"Be kind."}"#,
        );
        let read = read_initialized("kb", &result).unwrap();
        assert_eq!(read.version, Version::V2025_06_18);
        assert_eq!(
            read.capabilities.get(),
            r#"{"tools":{"listChanged":true},"extensions":{"x/y":{}}}"#
        );
        assert_eq!(read.instructions.as_deref(), Some("Be kind."));
    }

    #[test]
    fn capabilities_in_another_form_count_as_those_that_the_server_means() {
        each_row(
            [
                ("{}", "{}"),
                (
                    r#"{"tools":{"listChanged":true},"resources":{"subscribe":false}}"#,
                    r#"{"tools":{"listChanged":true},"resources":{"subscribe":false}}"#,
                ),
                (r#"{"tools":{"listChanged":null}}"#, r#"{"tools":{}}"#),
                (r#"{"tools":{"listChanged":"yes"}}"#, r#"{"tools":{}}"#),
                (r#"{"tools":true,"prompts":false}"#, r#"{"tools":{}}"#),
                (
                    r#"{"tools":[],"logging":1,"resources":null}"#,
                    r#"{"tools":{},"logging":{}}"#,
                ),
                (
                    r#"{"resources":{"subscribe":0,"listChanged":true,"x":1}}"#,
                    r#"{"resources":{"listChanged":true,"x":1}}"#,
                ),
                (
                    r#"{"experimental":true,"extensions":null}"#,
                    r#"{"experimental":{}}"#,
                ),
                ("null", "{}"),
                ("true", "{}"),
                ("[]", "{}"),
                (r#""tools""#, "{}"),
            ],
            |(sent, read)| {
                let result = format!(
                    r#"{{"protocolVersion":"2025-06-18","capabilities":{sent},"instructions":{{}}}}"#
                );
                let described = read_initialized("kb", &json(&result)).unwrap();
                assert_eq!(described.capabilities.get(), read, "{sent}");
                assert_eq!(described.instructions, None);
            },
        );
    }

    #[test]
    fn what_a_server_says_of_itself_is_bounded() {
        let result = |capabilities: &str, info: usize, instructions: usize| {
            let (info, instructions) = ("i".repeat(info), "\u{e9}".repeat(instructions));
            let read = read_initialized(
                "kb",
                &json(&format!(
                    r#"{{"protocolVersion":"2025-06-18","capabilities":{capabilities},
                "serverInfo":"{info}","instructions":"{instructions}"}}"#
                )),
            );
            read.map(|read| (read.server_info.is_some(), read.instructions.unwrap().len()))
        };
        assert_eq!(result("{}", 10, 10).unwrap(), (true, 20));
        assert_eq!(
            result("{}", MAX_INFO, 1 << 20).unwrap(),
            (false, MAX_INSTRUCTIONS)
        );
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_CAPABILITIES));
        assert!(matches!(result(&long, 1, 1), Err(MountError::Protocol(_))));
    }

    #[test]
    fn an_initialize_result_with_a_modern_or_unknown_revision_is_an_error() {
        each_row(["2026-07-28", "1999-01-01", ""], |version| {
            let result = json(&format!(r#"{{"protocolVersion":"{version}"}}"#));
            assert!(read_initialized("kb", &result).is_err());
        });
        assert!(read_initialized("kb", &json("[]")).is_err());
    }

    #[test]
    fn server_info_of_a_discovery_is_read_from_meta_or_the_result() {
        each_row(
            [
                r#"{"supportedVersions":["2099-01-01","2025-11-25","2026-07-28"],
                "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}"#,
                r#"{"supportedVersions":["2026-07-28","2025-11-25"],"serverInfo":{"name":"s"}}"#,
            ],
            |result| {
                let read = Discovered::read("kb", &json(result)).unwrap();
                assert_eq!(read.versions, [Version::V2026_07_28, Version::V2025_11_25]);
                assert_eq!(read.described.server_info.unwrap().get(), r#"{"name":"s"}"#);
                assert_eq!(read.described.capabilities.get(), "{}");
            },
        );
    }

    #[test]
    fn an_error_code_that_only_one_era_defines_identifies_the_era() {
        let refusal = |code, data: &str| {
            Refusal::of(&RpcError {
                code,
                message: "no".into(),
                data: Some(json(data)),
            })
        };
        let Refusal::Supported(versions) = refusal(-32022, r#"{"supported":["2025-11-25"]}"#)
        else {
            panic!("the error lists no revisions");
        };
        assert_eq!(versions, [Version::V2025_11_25]);
        assert!(matches!(refusal(-32022, "{}"), Refusal::Modern));
        assert!(matches!(refusal(-32020, "null"), Refusal::Modern));
        assert!(matches!(refusal(-32601, "null"), Refusal::Other));
        let named = refusal(-32000, r#"{"supported":["2025-11-25"]}"#);
        assert!(matches!(named, Refusal::Other));
    }
}
