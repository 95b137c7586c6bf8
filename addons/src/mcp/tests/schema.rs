//! Removal of hidden fields from schemas.

use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::each_row;

use super::super::schema::{HiddenField, without_fields};
use crate::json::Node;

fn without(schema: &Value, fields: &[(&[&str], bool)]) -> Value {
    let fields: Vec<_> = fields
        .iter()
        .map(|&(path, has_default)| HiddenField { path, has_default })
        .collect();
    let text = schema.to_string();
    let edited = without_fields(Node::parse(&text).unwrap(), &fields);
    serde_json::from_str(&edited.to_json()).unwrap()
}

/// Removes `h`, which is hidden, and `d`, which has a default.
fn edited(schema: &Value) -> Value {
    without(schema, &[(&["h"], false), (&["d"], true)])
}

#[test]
fn hidden_fields_are_removed_from_known_keywords_only() {
    let all = json!({ "a": {}, "h": {}, "d": {} });
    each_row(
        [
            (
                json!({ "properties": all, "required": ["h", "a", "d"] }),
                json!({ "properties": { "a": {} }, "required": ["a"] }),
            ),
            (
                json!({ "allOf": [{ "required": ["h"] }, { "properties": all }] }),
                json!({ "allOf": [{ "required": [] }, { "properties": { "a": {} } }] }),
            ),
            // The first branch is removed: no caller can send `h`.
            (
                json!({ "anyOf": [{ "required": ["h"] }, { "required": ["a"] }, { "required": ["d"] }] }),
                json!({ "anyOf": [{ "required": ["a"] }, { "required": [] }] }),
            ),
            (
                json!({ "oneOf": [{ "required": ["h"] }, { "required": ["a"] }] }),
                json!({ "anyOf": [{ "required": ["a"] }] }),
            ),
            (
                json!({ "oneOf": [{ "required": ["h"] }] , "type": "object" }),
                json!({ "type": "object" }),
            ),
            (
                json!({ "oneOf": [{ "properties": all }, { "required": ["a"] }] }),
                json!({ "anyOf": [{ "properties": { "a": {} } }, { "required": ["a"] }] }),
            ),
            (
                json!({ "not": { "required": ["h"] }, "x": 1 }),
                json!({ "x": 1 }),
            ),
            (
                json!({ "not": { "required": ["a"] } }),
                json!({ "not": { "required": ["a"] } }),
            ),
            (
                json!({ "if": { "required": ["d"] }, "then": { "required": ["a"] }, "else": {} }),
                json!({}),
            ),
            (
                json!({ "if": { "required": ["a"] }, "then": { "required": ["h"] } }),
                json!({ "if": { "required": ["a"] }, "then": { "required": [] } }),
            ),
            (
                json!({ "dependentRequired": { "h": ["a"], "a": ["d", "b"] } }),
                json!({ "dependentRequired": { "a": ["b"] } }),
            ),
            (
                json!({ "dependentSchemas": { "d": {}, "a": { "required": ["h"] } } }),
                json!({ "dependentSchemas": { "a": { "required": [] } } }),
            ),
            (
                json!({ "default": { "h": 1, "a": 2 }, "examples": [{ "d": 1 }, { "a": 1 }] }),
                json!({ "default": { "a": 2 }, "examples": [{}, { "a": 1 }] }),
            ),
            (
                json!({ "additionalProperties": false, "x-other": { "h": 1 } }),
                json!({ "additionalProperties": false, "x-other": { "h": 1 } }),
            ),
            (json!(true), json!(true)),
        ],
        |(schema, expected)| assert_eq!(edited(&schema), expected, "{schema}"),
    );
}

#[test]
fn fields_of_nested_objects_and_arrays_are_removed() {
    let address =
        json!({ "type": "object", "properties": { "zip": {}, "city": {} }, "required": ["zip"] });
    let expected = json!({ "type": "object", "properties": { "city": {} }, "required": [] });
    let schema =
        |inner: &Value| json!({ "properties": { "to": inner, "zip": {} }, "required": ["zip"] });
    let path: &[(&[&str], bool)] = &[(&["to", "zip"], false)];
    assert_eq!(without(&schema(&address), path), schema(&expected));
    let list = |items: &Value| schema(&json!({ "type": "array", "items": items }));
    assert_eq!(without(&list(&address), path), list(&expected));
}

#[test]
fn a_definition_with_other_references_is_copied() {
    let args = json!({ "properties": { "h": {}, "child": { "$ref": "#/$defs/Args" } } });
    let schema = json!({ "$ref": "#/$defs/Args", "$defs": { "Args": args, "Other": {} } });
    let edited = edited(&schema);
    assert_eq!(edited["$ref"], "#/$defs/Args.exposed0");
    let copy = &edited["$defs"]["Args.exposed0"]["properties"];
    assert_eq!(*copy, json!({ "child": { "$ref": "#/$defs/Args" } }));
    assert_eq!(
        edited["$defs"]["Args"], args,
        "`child` still refers to the original"
    );
    assert_eq!(
        edited["$defs"]["Other"],
        json!({}),
        "a definition that was not copied stays"
    );
}

#[test]
fn a_copied_definition_to_which_nothing_refers_is_removed() {
    let schema = json!({
        "allOf": [{ "$ref": "#/definitions/A~1b" }],
        "definitions": { "A/b": { "properties": { "h": { "description": "internal" } } } },
    });
    let expected = json!({
        "allOf": [{ "$ref": "#/definitions/A~1b.exposed0" }],
        "definitions": { "A/b.exposed0": { "properties": {} } },
    });
    assert_eq!(edited(&schema), expected);
}

#[test]
fn a_schema_with_circular_long_or_unresolvable_references_is_still_edited() {
    let circle = json!({ "$ref": "#/$defs/A", "$defs": {
        "A": { "allOf": [{ "$ref": "#/$defs/B" }], "properties": { "h": {} } },
        "B": { "allOf": [{ "$ref": "#/$defs/A" }] },
    } });
    assert!(!edited(&circle).to_string().contains("\"h\""));
    let mut chain = json!({ "$ref": "#/$defs/n0", "properties": { "h": {} }, "$defs": {} });
    for n in 0..5000 {
        let next = json!({ "$ref": format!("#/$defs/n{}", n + 1) });
        chain["$defs"][format!("n{n}")] = next;
    }
    assert!(edited(&chain)["$defs"].as_object().unwrap().len() > 4000);
    each_row(
        [
            "#",
            "#/$defs/",
            "#/$defs/missing",
            "#/$defs/a/b",
            "https://example.com/s",
            "#/$defs/%zz",
        ],
        |reference| {
            let schema = json!({ "$ref": reference, "properties": { "h": {} } });
            assert_eq!(edited(&schema)["properties"], json!({}), "{reference}");
        },
    );
}

proptest! {
    /// For any schema: editing does not panic, removes hidden properties of the root, and changes
    /// nothing if the schema does not have the field. Without references, a second edit changes
    /// nothing.
    #[test]
    fn any_schema_can_be_edited(
        keywords in prop::collection::vec((any_keyword(), any_part()), 0..6),
        rounds in 0..3_usize,
    ) {
        let mut schema = json!({});
        for _ in 0..=rounds {
            for (keyword, part) in &keywords {
                schema[*keyword] = part.clone();
            }
            schema = json!({ "allOf": [schema.clone()], "properties": { "a": schema, "h": {} } });
        }
        let once = edited(&schema);
        prop_assert!(once["properties"].get("h").is_none());
        if !once.to_string().contains("$ref") {
            prop_assert_eq!(edited(&once), once);
        }
        prop_assert_eq!(without(&schema, &[(&["unknown"], false)]), schema);
    }
}

fn any_keyword() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "properties",
        "required",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "$ref",
        "$defs",
        "dependentRequired",
        "items",
        "type",
        "default",
    ])
}

fn any_part() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({ "h": {}, "a": { "required": ["h"] } }),
        json!(["h", "a"]),
        json!([{ "required": ["h"] }, { "properties": { "h": true } }]),
        json!({ "required": ["d"] }),
        json!("#/$defs/a"),
        json!({ "a": { "$ref": "#/$defs/h" }, "h": { "properties": { "h": {} } } }),
        json!(7),
        Value::Null,
    ])
}
