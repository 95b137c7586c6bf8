//! Params of a tool call: the effects of overrides, refusals, and the hash for the audit log.

use proptest::prelude::*;
use testkit::{each_row, each_row_async};

use super::super::super::arguments::Defaults;
use super::*;
use crate::fixtures::{processor_time, run};
use crate::json::Node;

fn rule(hide: &[&str], defaults: &[(&str, Value)]) -> OverrideRule {
    OverrideRule {
        hide_fields: hide.iter().map(|&field| field.into()).collect(),
        defaults: defaults
            .iter()
            .map(|(field, value)| ((*field).into(), Injected::Value(value.clone())))
            .collect(),
        ..OverrideRule::default()
    }
}

#[tokio::test]
async fn hidden_fields_are_removed_and_defaults_replace_the_callers_values() {
    let gate = gate(with_rule(rule(
        &["debug", "opts.raw"],
        &[("units", json!("metric")), ("opts.lang", json!("en"))],
    )));
    each_row_async(
        [
            (json!({}), json!({ "units": "metric", "opts": { "lang": "en" } })),
            (
                json!({ "debug": 1, "q": 2, "units": "us" }),
                json!({ "q": 2, "units": "metric", "opts": { "lang": "en" } }),
            ),
            // A server that compares names case-insensitively would accept these fields.
            (
                json!({ "Debug": 1, "DEBUG": 2, "Units": 3, "opts": { "RAW": 1, "a": 2, "Lang": 3 } }),
                json!({ "opts": { "a": 2, "lang": "en" }, "units": "metric" }),
            ),
            (
                json!({ "opts": { "raw": 1, "a": 1 }, "opts.raw": 1 }),
                json!({ "opts": { "a": 1, "lang": "en" }, "units": "metric" }),
            ),
            // To such a server, the default must be in each spelling of the object.
            (
                json!({ "opts": { "a": 1 }, "Opts": { "RAW": 1 } }),
                json!({ "opts": { "a": 1, "lang": "en" }, "Opts": { "lang": "en" }, "units": "metric" }),
            ),
        ],
        async |(sent, expected)| {
            assert_eq!(gate.fetch(sent.clone()).await.unwrap(), expected, "{sent}");
        },
    )
    .await;
}

/// Calls `fetch` as a tool with this `inputSchema`; returns the arguments that are sent.
fn sent(gate: &Gate, schema: &Value, arguments: &Value) -> Result<Value, Denial> {
    let definition = tool(json!({ "name": "fetch", "inputSchema": schema }).to_string());
    let mut frame = fetch(arguments).of_tool(definition);
    run(gate.request(&mut gate.flow(), &mut frame))?;
    Ok(params(&frame)["arguments"].clone())
}

#[test]
fn a_call_with_anything_but_an_object_above_a_hidden_field_or_a_default_is_denied() {
    let rules = [
        rule(&["options.secret"], &[]),
        rule(&[], &[("options.secret", json!(true))]),
        rule(&["options.deep.secret"], &[]),
        rule(&[], &[("options.deep.secret", json!(true))]),
        rule(&["options.secret"], &[("other", json!(1))]),
    ];
    // The schema permits all these values, as that of a server that parses them might.
    let schemas = [
        json!({}),
        json!({ "properties": { "options": {} } }),
        json!({ "properties": { "options": { "type": ["object", "array", "string", "null"] } } }),
        json!({ "properties": { "options": { "anyOf": [
            { "type": "object", "properties": { "secret": {} } }, { "type": "array" }, { "type": "null" },
        ] } } }),
    ];
    let values = [
        json!(null),
        json!([]),
        json!([{}]),
        json!([{ "secret": false }]),
        json!(0),
        json!(-1.5),
        json!(true),
        json!(""),
        json!("{\"secret\":false}"),
        json!("secret=false"),
    ];
    for rule in rules {
        let gate = gate(with_rule(rule));
        for schema in &schemas {
            each_row(&values, |value| {
                for key in ["options", "Options", "OPTIONS"] {
                    let denied = sent(&gate, schema, &json!({ key: value }));
                    let denied = denied.unwrap_err();
                    assert_eq!(denied.code(), Code::MalformedRequest, "{key}");
                    assert!(
                        !denied.to_json().to_string().contains("secret"),
                        "{denied:?}"
                    );
                }
            });
            sent(&gate, schema, &json!({})).unwrap();
            sent(&gate, schema, &json!({ "options": {} })).unwrap();
        }
    }
}

#[test]
fn in_a_declared_array_every_element_must_be_an_object_and_hidden_fields_and_defaults_hold_there() {
    let gate = gate(with_rule(rule(
        &["list.raw"],
        &[("list.lang", json!("en"))],
    )));
    let element = json!({ "type": "object", "properties": { "raw": {}, "lang": {} } });
    let lists = [
        json!({ "properties": { "list": { "type": "array", "items": element } } }),
        json!({ "properties": { "list": { "type": ["array", "null"] } } }),
        json!({ "properties": { "list": { "anyOf": [{ "prefixItems": [element] }, { "type": "null" }] } } }),
        json!({
            "properties": { "list": { "$ref": "#/$defs/List" } },
            "$defs": { "List": { "type": "array", "items": { "$ref": "#/$defs/List" } } },
        }),
    ];
    each_row(&lists, |schema| {
        let arrived = sent(
            &gate,
            schema,
            &json!({ "list": [{ "raw": 1 }, { "Raw": 1, "a": 1 }] }),
        );
        let expected = json!({ "list": [{ "lang": "en" }, { "a": 1, "lang": "en" }] });
        assert_eq!(arrived.unwrap(), expected);
        for element in [json!(null), json!("{\"raw\":1}"), json!(1)] {
            let denied = sent(&gate, schema, &json!({ "list": [{}, element] }));
            assert_eq!(code(&denied), Some(Code::MalformedRequest), "{element}");
        }
    });
    let nested = json!({ "list": [[{ "raw": 1 }], []] });
    let arrived = sent(&gate, &lists[3], &nested).unwrap();
    assert_eq!(arrived, json!({ "list": [[{ "lang": "en" }], []] }));
    let denied = sent(&gate, &lists[0], &nested);
    assert_eq!(code(&denied), Some(Code::MalformedRequest));
}

#[test]
fn a_removed_value_and_a_declared_name_with_dots_may_have_any_shape() {
    let gate = gate(with_rule(rule(
        &["options", "a.b"],
        &[("options.lang", json!("en"))],
    )));
    let schema = json!({ "properties": { "a.b": {}, "a": { "type": "string" } } });
    let arrived = sent(
        &gate,
        &schema,
        &json!({ "options": "raw", "a": "text", "a.b": 1 }),
    );
    let expected = json!({ "options": { "lang": "en" }, "a": "text" });
    assert_eq!(arrived.unwrap(), expected);
}

#[test]
fn params_with_another_spelling_of_a_key_that_the_chain_reads_are_denied() {
    let gate = gate(with_rule(rule(&["debug"], &[])));
    let spellings = [
        r#""Arguments":{"debug":true}"#,
        r#""ARGUMENTS":null"#,
        r#""argument\u017f":{"debug":true}"#,
        r#""Name":"other""#,
        r#""Task":{}"#,
        r#""_Meta":{}"#,
        r#""requeststate":"x""#,
        r#""InputResponses":{}"#,
    ];
    each_row(spellings, |member| {
        let text = format!(r#"{{"name":"fetch","arguments":{{}},{member}}}"#);
        let judged = run(gate.request(&mut gate.flow(), &mut call(text)));
        assert_eq!(code(&judged), Some(Code::MalformedRequest));
    });
}

/// The bound is generous: only a change of complexity exceeds it.
#[test]
fn two_thousand_spellings_of_a_hidden_field_are_removed_within_200_ms() {
    let property = json!({ "description": "x".repeat(1000) });
    let properties = (0..200).map(|n| (format!("field_{n}"), property.clone()));
    let properties: serde_json::Map<_, _> = properties.collect();
    let schema = json!({ "properties": properties }).to_string();
    let spelling = |number: u32| -> String {
        let letters = ('a'..='k').enumerate();
        let letters = letters.map(|(at, letter)| match (number >> at) & 1 {
            0 => letter,
            _ => letter.to_ascii_uppercase(),
        });
        letters.collect()
    };
    let sent = (0..2048).map(|number| (spelling(number), Value::Null));
    let sent = Value::Object(sent.collect()).to_string();
    let rule = rule(&["abcdefghijk"], &[]);
    let took = processor_time(|| {
        let mut arguments = Node::parse(&sent).unwrap();
        rule.apply(&mut arguments, Some(&schema), Defaults::Sent)
            .unwrap();
        assert_eq!(arguments, Node::Object(Vec::new()));
    });
    assert!(took < Duration::from_millis(200), "{took:?}");
}

#[tokio::test]
async fn a_declared_field_that_differs_from_a_hidden_field_only_in_case_passes() {
    let gate = gate(with_rule(rule(&["id"], &[])));
    let schema = json!({ "properties": { "id": {}, "ID": {} } });
    let definition = tool(json!({ "name": "fetch", "inputSchema": schema }).to_string());
    let mut frame = fetch(&json!({ "id": 1, "ID": 2, "Id": 3 })).of_tool(definition);
    gate.request(&mut gate.flow(), &mut frame).await.unwrap();
    assert_eq!(params(&frame)["arguments"], json!({ "ID": 2 }));
}

#[tokio::test]
async fn uuid_and_now_are_computed_for_each_call() {
    let computed = OverrideRule {
        defaults: vec![("id".into(), Injected::Uuid), ("at".into(), Injected::Now)],
        ..OverrideRule::default()
    };
    let gate = gate(with_rule(computed));
    let one = gate.fetch(json!({ "id": "mine" })).await.unwrap();
    let other = gate.fetch(json!({})).await.unwrap();
    let id = uuid::Uuid::parse_str(one["id"].as_str().unwrap()).unwrap();
    assert_eq!(id.get_version_num(), 4);
    assert_ne!(one["id"], other["id"]);
    let at = one["at"].as_str().unwrap();
    let at = time::OffsetDateTime::parse(at, &time::format_description::well_known::Rfc3339);
    let age = time::OffsetDateTime::now_utc() - at.unwrap();
    assert!(age.whole_seconds() < 60, "{age}");
}

#[tokio::test]
async fn params_pass_byte_for_byte_and_an_override_keeps_the_notation_of_numbers() {
    let gate = gate(settings());
    let text =
        r#"{ "name":"fetch", "arguments":{"n":1.0,"m":1e400,"z":[],"a":{}},"_meta":{"x":1} }"#;
    let mut frame = call(text);
    gate.request(&mut gate.flow(), &mut frame).await.unwrap();
    assert_eq!(frame.params().unwrap().get(), text);
    let changing = super::gate(with_rule(rule(&["a"], &[])));
    let mut frame = call(text);
    changing
        .request(&mut changing.flow(), &mut frame)
        .await
        .unwrap();
    let expected = r#"{"name":"fetch","arguments":{"n":1.0,"m":1e400,"z":[]},"_meta":{"x":1}}"#;
    assert_eq!(frame.params().unwrap().get(), expected);
}

#[test]
fn ambiguous_or_invalid_params_are_refused_but_missing_arguments_pass() {
    let large = format!("{{\"a\":1,\"a\":\"{}\"}}", "x".repeat(100_000));
    let large = format!("{{\"name\":\"fetch\",\"arguments\":{large}}}");
    let gate = gate(settings());
    let cases = [
        r#"{"name":"fetch","arguments":{"a":1,"a":2}}"#,
        r#"{"name":"fetch","arguments":{"a":[{"b":1,"\u0062":2}]}}"#,
        r#"{"name":"fetch","arguments":{},"arguments":{"a":1}}"#,
        r#"{"name":"fetch","name":"other"}"#,
        r#"{"name":"fetch","arguments":[1]}"#,
        r#"{"name":"fetch","arguments":"{}"}"#,
        r#"{"name":"other","arguments":{}}"#,
        r#"{"arguments":{}}"#,
        r#"["fetch",{}]"#,
        &large,
    ];
    each_row(cases, |text| {
        let judged = run(gate.request(&mut gate.flow(), &mut call(text)));
        assert_eq!(code(&judged), Some(Code::MalformedRequest), "{text:.80}");
    });
    let mut empty =
        Frame::request(Direction::ToServer, to_fetch(), "tools/call", None).of_tool(tool(FETCH));
    let judged = run(gate.request(&mut gate.flow(), &mut empty));
    assert_eq!(code(&judged), Some(Code::MalformedRequest));
    each_row(
        [
            r#"{"name":"fetch"}"#,
            r#"{"name":"fetch","arguments":null}"#,
        ],
        |text| run(gate.request(&mut gate.flow(), &mut call(text))).unwrap(),
    );
}

/// `printf '{"a":1,"q":"x"}' | sha256sum`
const SHA256: &str = "d491a4da58bc4a936f8b756006f71101872ee7e0de8235e29e500ff837c46cec";

#[tokio::test]
async fn the_hash_of_the_callers_arguments_is_independent_of_their_json_notation() {
    let gate = gate(with_rule(rule(&["a"], &[("b", json!(2))])));
    let mut hashes = Vec::new();
    let large = format!("{}{}", " ".repeat(100_000), r#"{"a":1,"q":"x"}"#);
    for arguments in [r#"{"a":1,"q":"x"}"#, r#"{ "q":"\u0078", "a":1.0 }"#, &large] {
        let mut flow = gate.flow();
        let text = format!("{{\"name\":\"fetch\",\"arguments\":{arguments}}}");
        gate.request(&mut flow, &mut call(text)).await.unwrap();
        hashes.push(flow.mcp_record().args_sha256.clone().unwrap());
    }
    assert_eq!(
        hashes,
        [SHA256.into(), SHA256.into(), SHA256.into()] as [Box<str>; 3]
    );
}

fn any_arguments() -> impl Strategy<Value = Value> {
    let value = prop_oneof![
        any::<i32>().prop_map(Value::from),
        "[a-z]{0,4}".prop_map(Value::from),
        Just(json!({ "inner": [1, { "x": null }] })),
    ];
    let key = prop::sample::select(vec![
        "a", "b", "A", "hidden", "Hidden", "units", "UNITS", "z",
    ]);
    prop::collection::btree_map(key, value, 0..6).prop_map(|members| json!(members))
}

proptest! {
    /// Fields that are neither hidden nor have a default pass unchanged.
    #[test]
    fn unhidden_arguments_pass_unchanged(sent in any_arguments()) {
        let gate = gate(with_rule(rule(&["hidden"], &[("units", json!("metric"))])));
        let arrived = run(gate.fetch(sent.clone())).unwrap();
        let mut expected = sent;
        let members = expected.as_object_mut().unwrap();
        for field in ["hidden", "Hidden", "units", "UNITS"] {
            members.shift_remove(field);
        }
        members.insert("units".to_owned(), json!("metric"));
        prop_assert_eq!(arrived, expected);
    }
}
