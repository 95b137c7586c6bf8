//! Mirrors arguments of a tool call in header fields, according to `x-mcp-header` in the tool's
//! definition (2026-07-28, server/tools and basic/transports/streamable-http).

use std::collections::HashSet;

use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::headers::mirrored;

const ANNOTATION: &str = "x-mcp-header";
const PREFIX: &str = "mcp-param-";
/// Limit on the mirrored arguments of one tool, since servers limit the length of the header
/// section. A tool with more is invalid.
const MAX_MIRRORED: usize = 64;
/// The largest integer on whose exact value JSON implementations agree (RFC 8259, section 6).
const MAX_SAFE: u64 = (1 << 53) - 1;

/// A mirrored argument.
#[derive(Debug)]
struct Mirrored {
    /// The keys that lead from the `arguments` of a call to this argument.
    path: Vec<String>,
    field: HeaderName,
}

/// Checks the annotations of a tool as its server lists it. The specification forbids using a tool
/// that breaks the rules; the error names the rule.
pub fn check(tool: &RawValue) -> Result<(), String> {
    find(tool).map(drop)
}

/// Adds the header fields for a call's arguments. Fails if the tool's annotations break a rule, or
/// the params cannot be read.
pub fn add(
    tool: &RawValue,
    params: Option<&RawValue>,
    headers: &mut HeaderMap,
) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Called {
        arguments: Option<Value>,
    }
    let wanted = find(tool)?;
    let Some(params) = params.filter(|_| !wanted.is_empty()) else {
        return Ok(());
    };
    let called: Called = serde_json::from_str(params.get()).map_err(|error| error.to_string())?;
    for Mirrored { path, field } in wanted {
        let found = path
            .iter()
            .try_fold(called.arguments.as_ref(), |value, key| {
                Some(value?.as_object()?.get(key))
            });
        let text = found.flatten().and_then(as_text);
        if let Some(value) = text.as_deref().and_then(mirrored) {
            headers.insert(field, value);
        }
    }
    Ok(())
}

/// Returns the annotated properties of a tool's input schema. Fails if an annotation breaks a rule;
/// the error names the rule.
fn find(tool: &RawValue) -> Result<Vec<Mirrored>, String> {
    #[derive(Deserialize)]
    struct Tool {
        #[serde(rename = "inputSchema")]
        input_schema: Option<Value>,
    }
    let text = tool.get();
    // JSON may spell the key with `\u` escapes.
    if !text.contains(ANNOTATION) && !text.contains("\\u") {
        return Ok(Vec::new());
    }
    let tool: Tool = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut search = Search::default();
    if let Some(schema) = &tool.input_schema {
        search.schema(schema, Some(&mut Vec::new()))?;
    }
    if search.found.len() > MAX_MIRRORED {
        return Err(format!(
            "more than {MAX_MIRRORED} arguments have {ANNOTATION}"
        ));
    }
    Ok(search.found)
}

#[derive(Default)]
struct Search {
    found: Vec<Mirrored>,
    names: HashSet<String>,
}

impl Search {
    /// Visits one schema. `path` has the keys of `properties` that lead from the root to this
    /// schema; `None` if another keyword is in between. The strict parser has bounded the nesting,
    /// which bounds the depth of the recursion.
    fn schema(&mut self, schema: &Value, path: Option<&mut Vec<String>>) -> Result<(), String> {
        let Some(schema) = schema.as_object() else {
            return Ok(());
        };
        if let Some(annotation) = schema.get(ANNOTATION) {
            self.annotated(annotation, schema, path.as_deref().map(Vec::as_slice))?;
        }
        let mut path = path;
        for (keyword, value) in schema {
            match keyword.as_str() {
                "properties" => self.properties(value, path.as_deref_mut())?,
                "items"
                | "contains"
                | "unevaluatedItems"
                | "additionalProperties"
                | "propertyNames"
                | "unevaluatedProperties"
                | "not"
                | "if"
                | "then"
                | "else"
                | "contentSchema"
                | "allOf"
                | "anyOf"
                | "oneOf"
                | "prefixItems"
                | "additionalItems" => self.elsewhere(value)?,
                "patternProperties" | "dependentSchemas" | "$defs" | "definitions" => {
                    self.each_of(value)?;
                }
                // Instance values and unknown keywords contain no schemas.
                _ => {}
            }
        }
        Ok(())
    }

    fn properties(
        &mut self,
        properties: &Value,
        path: Option<&mut Vec<String>>,
    ) -> Result<(), String> {
        let Some(path) = path else {
            return self.each_of(properties);
        };
        for (name, schema) in properties.as_object().into_iter().flatten() {
            path.push(name.clone());
            self.schema(schema, Some(path))?;
            path.pop();
        }
        Ok(())
    }

    /// Visits a schema or a list of schemas that is not reached through `properties` alone.
    fn elsewhere(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Array(schemas) => schemas
                .iter()
                .try_for_each(|schema| self.schema(schema, None)),
            schema => self.schema(schema, None),
        }
    }

    /// Visits the schemas of an object that are not reached through `properties` alone.
    fn each_of(&mut self, value: &Value) -> Result<(), String> {
        let mut schemas = value.as_object().into_iter().flatten();
        schemas.try_for_each(|(_, schema)| self.schema(schema, None))
    }

    fn annotated(
        &mut self,
        annotation: &Value,
        schema: &Map<String, Value>,
        path: Option<&[String]>,
    ) -> Result<(), String> {
        let path = path.filter(|path| !path.is_empty()).ok_or_else(|| {
            format!("{ANNOTATION} is on a schema that is not reached through `properties` alone")
        })?;
        let at = path.join(".");
        let name = annotation
            .as_str()
            .ok_or_else(|| format!("{at}: {ANNOTATION} is not a string"))?;
        let field = format!("{PREFIX}{name}");
        let field: HeaderName = field
            .parse()
            .ok()
            .filter(|_| !name.is_empty())
            .ok_or_else(|| format!("{at}: {ANNOTATION} is not a valid header field name"))?;
        let kind = schema.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("string" | "integer" | "boolean")) {
            return Err(format!(
                "{at}: {ANNOTATION} is allowed only for strings, integers and booleans"
            ));
        }
        if !self.names.insert(name.to_ascii_lowercase()) {
            return Err(format!("{at}: another property has the same {ANNOTATION}"));
        }
        let path = path.to_vec();
        self.found.push(Mirrored { path, field });
        Ok(())
    }
}

/// The text of a value. `None` for values that are not mirrored: null, arrays, objects, and the
/// numbers that [`integer`] refuses.
fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Number(number) => integer(number),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Formats a whole number in decimal, also if it was written with a fraction or an exponent; `None`
/// for other numbers and for those beyond [`MAX_SAFE`].
fn integer(number: &Number) -> Option<String> {
    let is_safe = |magnitude: u64| magnitude <= MAX_SAFE;
    if let Some(whole) = number.as_i64() {
        return is_safe(whole.unsigned_abs()).then(|| whole.to_string());
    }
    let float = number.as_f64()?;
    let is_whole = float.fract() == 0.0 && float.abs() <= MAX_SAFE as f64;
    is_whole.then(|| format!("{float:.0}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::each_row;

    use super::*;

    fn tool(schema: &Value) -> Box<RawValue> {
        let tool = json!({"name": "t", "inputSchema": schema});
        serde_json::value::to_raw_value(&tool).unwrap()
    }

    fn one(property: Value) -> Value {
        json!({"type": "object", "properties": {"value": property}})
    }

    #[test]
    fn annotations_that_break_a_rule_make_the_tool_invalid() {
        let good = json!({"type": "string", "x-mcp-header": "Region"});
        each_row(
            [
                ("empty", one(json!({"type": "string", "x-mcp-header": ""}))),
                (
                    "not a string",
                    one(json!({"type": "string", "x-mcp-header": 7})),
                ),
                (
                    "space",
                    one(json!({"type": "string", "x-mcp-header": "My Region"})),
                ),
                (
                    "colon",
                    one(json!({"type": "string", "x-mcp-header": "Region:Primary"})),
                ),
                (
                    "not ASCII",
                    one(json!({"type": "string", "x-mcp-header": "Région"})),
                ),
                (
                    "control",
                    one(json!({"type": "string", "x-mcp-header": "Region\t1"})),
                ),
                (
                    "number",
                    one(json!({"type": "number", "x-mcp-header": "Score"})),
                ),
                (
                    "object",
                    one(json!({"type": "object", "x-mcp-header": "Data"})),
                ),
                (
                    "array",
                    one(json!({"type": "array", "x-mcp-header": "Items"})),
                ),
                ("null", one(json!({"type": "null", "x-mcp-header": "Nil"}))),
                ("no type", one(json!({"x-mcp-header": "Any"}))),
                (
                    "types",
                    one(json!({"type": ["string", "null"], "x-mcp-header": "Any"})),
                ),
                (
                    "twice",
                    json!({"properties": {"a": good, "b": {"type": "string", "x-mcp-header": "REGION"}}}),
                ),
                ("root", json!({"type": "object", "x-mcp-header": "Root"})),
                ("items", one(json!({"type": "array", "items": good}))),
                ("anyOf", one(json!({"anyOf": [good]}))),
                ("then", json!({"then": {"properties": {"a": good}}})),
                ("$defs", json!({"$defs": {"region": good}})),
            ],
            |(name, schema)| assert!(check(&tool(&schema)).is_err(), "{name}"),
        );
        each_row(
            [
                one(good.clone()),
                json!({"properties": {"deep": {"type": "object", "properties": {"a": good}}}}),
                // Data, not a schema.
                one(json!({"type": "object", "default": {"x-mcp-header": ""}})),
                one(json!({"type": "string", "enum": ["x-mcp-header"]})),
            ],
            |schema| assert_eq!(check(&tool(&schema)), Ok(())),
        );
    }

    #[test]
    fn an_annotation_whose_key_contains_escapes_is_checked() {
        let text =
            r#"{"inputSchema":{"properties":{"a":{"type":"number","\u0078-mcp-header":"A"}}}}"#;
        let tool = RawValue::from_string(text.to_owned()).unwrap();
        assert!(check(&tool).is_err());
    }

    #[test]
    fn annotated_arguments_are_mirrored_in_header_fields() {
        let string = |name| json!({"type": "string", "x-mcp-header": name});
        let schema = json!({"properties": {
            "region": string("Region"),
            "empty": string("Empty"),
            "missing": string("Missing"),
            "method": string("Method"),
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "float": {"type": "integer", "x-mcp-header": "Float"},
            "huge": {"type": "integer", "x-mcp-header": "Huge"},
            "half": {"type": "integer", "x-mcp-header": "Half"},
            "off": {"type": "boolean", "x-mcp-header": "Off"},
            "none": {"type": "boolean", "x-mcp-header": "None"},
            "deep": {"type": "object", "properties": {"name": string("Deep")}},
        }});
        let params = json!({"name": "t", "arguments": {
            "region": "us\nwest", "empty": "", "method": "m", "count": -42, "float": 42.0,
            "huge": 9_007_199_254_740_992_u64, "half": 0.5, "off": false, "none": null,
            "deep": {"name": "d"}, "name": "not asked for"
        }});
        let params = serde_json::value::to_raw_value(&params).unwrap();
        let mut headers = HeaderMap::new();
        add(&tool(&schema), Some(&params), &mut headers).unwrap();
        let mut sent: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        sent.sort();
        assert_eq!(
            sent,
            [
                "mcp-param-count: -42",
                "mcp-param-deep: d",
                "mcp-param-empty: ",
                "mcp-param-float: 42",
                "mcp-param-method: m",
                "mcp-param-off: false",
                "mcp-param-region: =?base64?dXMKd2VzdA==?=",
            ]
        );
    }
}
