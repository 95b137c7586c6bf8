//! Checks `Mcp-Param-*`: headers that mirror arguments, as the tool's schema requires.

use std::sync::Arc;

use addons::contract::{Denial, RpcError};
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use super::super::super::caller::Caller;
use super::super::super::core::FoundTool;
use super::super::super::message::text;
use super::super::visit::Visit;
use super::headers::{decode, mismatch, value};
use super::params::ModernParams;
use super::request::Request;

const ANNOTATION: &str = "x-mcp-header";
const PREFIX: &str = "mcp-param-";

#[derive(Deserialize)]
struct Tool {
    #[serde(default, rename = "inputSchema")]
    input_schema: Value,
}

/// Compares the headers of a call with its arguments, according to the schema of the called tool.
/// Long arguments are read on a worker. Returns the tool; `None` for an unknown tool, whose call is
/// denied later.
pub async fn check(
    visit: &Visit<'_>,
    request: &Request,
    params: &ModernParams<'_>,
    caller: &Arc<Caller>,
) -> Result<Option<FoundTool>, Denial> {
    let Some(name) = params.name.and_then(text) else {
        return Ok(None);
    };
    let Some(tool) = visit.gateway.core.tool(caller, &name).await else {
        return Ok(None);
    };
    if !tool.definition.may_name_fields {
        return Ok(Some(tool));
    }
    let headers = visit.headers().clone();
    let arguments = params.arguments.map(RawValue::to_owned);
    let definition = Arc::clone(&tool.definition);
    let compare = move || {
        let Ok(tool) = serde_json::from_str::<Tool>(definition.raw.get()) else {
            return Ok(());
        };
        let arguments: Value = arguments
            .and_then(|text| serde_json::from_str(text.get()).ok())
            .unwrap_or_default();
        agree(&headers, &tool.input_schema, &arguments)
    };
    let compared = request.compute(visit, compare).await?;
    compared.map_err(|error| request.refuse(error))?;
    Ok(Some(tool))
}

/// Checks that each annotated property equals its header, or that both are absent. Checks nothing
/// if an annotation that [`collect`] finds is invalid, or if two name the same header: clients must
/// not use such a tool.
fn agree(headers: &HeaderMap, schema: &Value, arguments: &Value) -> Result<(), RpcError> {
    let mut annotated = Vec::new();
    if collect(schema, arguments, &mut annotated).is_none() {
        return Ok(());
    }
    for (at, one) in annotated.iter().enumerate() {
        let mut seen = annotated.iter().take(at);
        if seen.any(|other| other.header == one.header) {
            return Ok(());
        }
    }
    annotated.iter().try_for_each(|one| one.agrees(headers))
}

struct Annotated<'a> {
    header: HeaderName,
    is_integer: bool,
    argument: &'a Value,
}

/// Finds the annotated properties of the schema and of objects nested in it. Follows only
/// `properties`, no other keyword. `None` for an invalid annotation.
fn collect<'a>(
    schema: &'a Value,
    arguments: &'a Value,
    found: &mut Vec<Annotated<'a>>,
) -> Option<()> {
    let Some(properties) = schema["properties"].as_object() else {
        return Some(());
    };
    for (name, property) in properties {
        let argument = &arguments[name.as_str()];
        if let Some(annotation) = property.get(ANNOTATION) {
            let kind = property["type"].as_str();
            let kind = kind.filter(|kind| matches!(*kind, "string" | "integer" | "boolean"))?;
            let name = format!("{PREFIX}{}", annotation.as_str()?);
            found.push(Annotated {
                header: HeaderName::from_bytes(name.as_bytes()).ok()?,
                is_integer: kind == "integer",
                argument,
            });
        }
        collect(property, argument, found)?;
    }
    Some(())
}

impl Annotated<'_> {
    fn agrees(&self, headers: &HeaderMap) -> Result<(), RpcError> {
        let name = &self.header;
        let found = value(headers, name)?;
        let expected = match self.argument {
            Value::String(text) => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => Some(self.argument.to_string()),
            _ => None,
        };
        let agrees = match (found, &expected) {
            (None, None) => true,
            (None, Some(_)) => self.argument.as_number().is_some_and(is_not_mirrored),
            (Some(found), Some(expected)) => {
                decode(found).is_some_and(|found| self.is_same(&found, expected))
            }
            _ => false,
        };
        if agrees {
            return Ok(());
        }
        let message = format!("Header mismatch: {name} differs from the argument");
        Err(mismatch(message))
    }

    fn is_same(&self, found: &str, expected: &str) -> bool {
        found == expected
            || (self.is_integer
                && matches!((integer(found), integer(expected)), (Some(found), Some(expected)) if found == expected))
    }
}

/// Whether clients may send no header for a number: it has a fraction, or a magnitude that a double
/// does not represent exactly.
fn is_not_mirrored(number: &Number) -> bool {
    const MAX_SAFE: f64 = 9_007_199_254_740_991.0;
    let float = number.as_f64();
    float.is_none_or(|float| float.fract() != 0.0 || float.abs() > MAX_SAFE)
}

/// Parses a decimal number whose fraction is zero or absent.
fn integer(text: &str) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_zero = !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
    is_zero.then(|| whole.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;
    use testkit::each_row;

    use super::*;

    fn agrees(fields: &[(&'static str, &'static str)], arguments: &Value) -> bool {
        let schema = json!({ "type": "object", "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "size": { "type": "integer", "x-mcp-header": "Size" },
            "place": { "type": "object", "properties": {
                "dry": { "type": "boolean", "x-mcp-header": "Dry" },
            } },
            "other": { "type": "string" },
        } });
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        agree(&headers, &schema, arguments).is_ok()
    }

    #[test]
    fn annotated_arguments_must_equal_their_headers() {
        const REGION: &str = "mcp-param-region";
        each_row(
            [
                (&[][..], json!({}), true),
                (&[], json!({ "other": "x", "region": null }), true),
                (&[(REGION, "eu")], json!({ "region": "eu" }), true),
                (
                    &[(REGION, "=?base64?ZXU=?=")],
                    json!({ "region": "eu" }),
                    true,
                ),
                (
                    &[(REGION, "=?base64?ZXU?=")],
                    json!({ "region": "eu" }),
                    false,
                ),
                (&[(REGION, "us")], json!({ "region": "eu" }), false),
                (&[], json!({ "region": "eu" }), false),
                (&[(REGION, "eu")], json!({}), false),
                (
                    &[(REGION, "eu"), (REGION, "eu")],
                    json!({ "region": "eu" }),
                    false,
                ),
                (&[("mcp-param-size", "42.0")], json!({ "size": 42 }), true),
                (&[("mcp-param-size", "42.5")], json!({ "size": 42 }), false),
                (&[], json!({ "size": 42 }), false),
                (&[], json!({ "size": 9_007_199_254_740_992_i64 }), true),
                (&[], json!({ "size": 0.5 }), true),
                (
                    &[("mcp-param-size", "7")],
                    json!({ "size": 9_007_199_254_740_992_i64 }),
                    false,
                ),
                (
                    &[("mcp-param-dry", "true")],
                    json!({ "place": { "dry": true } }),
                    true,
                ),
                (
                    &[("mcp-param-dry", "True")],
                    json!({ "place": { "dry": true } }),
                    false,
                ),
                (&[("mcp-param-unknown", "x")], json!({}), true),
            ],
            |(fields, arguments, same)| {
                assert_eq!(agrees(fields, &arguments), same, "{fields:?} {arguments}");
            },
        );
    }
}
