//! Plain policies are recognised, and have the same result as in the interpreter.

use addons::contract::Effect;
use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;
use crate::mcp::policy::answer::Answer;
use crate::mcp::policy::bundle::Manifest;

fn bundle(files: &[String]) -> Bundle {
    let policies = files.iter().enumerate();
    Bundle {
        policies: policies
            .map(|(number, text)| (format!("{number}.rego"), text.clone()))
            .collect(),
        data: json!({
            "limits": {"most": 2, "names": ["x", "y"], "0": "zero"},
            "mcp": {"authz": {"known": {"x": true}}},
        }),
        manifest: Manifest::default(),
    }
}

fn policy(rules: &str) -> Bundle {
    bundle(&[format!("package mcp.authz\nimport rego.v1\n{rules}\n")])
}

fn program(bundle: &Bundle) -> Program {
    Program::compile(bundle, "mcp/authz").unwrap()
}

/// The answer as `effect: reason`, or the error. The text of [`EvaluationError::Failed`] is left
/// out, since the evaluators word it differently.
fn decided(program: &Program, input: &serde_json::Value) -> String {
    let input: Value = serde_json::from_value(input.clone()).unwrap();
    match program.evaluate(&input, Instant::now().checked_add(Duration::from_secs(5))) {
        Ok(Answer { effect, reason }) => {
            let effect = match effect {
                Effect::Redact(modified) => format!("redact {modified}"),
                other => format!("{other:?}"),
            };
            format!("{effect}: {reason:?}")
        }
        Err(EvaluationError::Failed(_)) => "failed".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn a_policy_is_plain_if_all_rules_that_its_decision_needs_are_plain() {
    let ask = |condition: &str| format!("decision := \"ask\" if {condition}");
    let cases = [
        (ask("startswith(input.a, \"x\")"), true),
        (ask("{ input.a; not input.b > 1 }"), true),
        (
            "a contains \"x\" if input.a\ndecision := \"ask\" if count(a) == 0".to_owned(),
            true,
        ),
        (
            "a contains input.x if input.a\ndecision := \"ask\" if \"y\" in a".to_owned(),
            true,
        ),
        (
            "decision := \"ask\" if input.a\nelse := input.b".to_owned(),
            true,
        ),
        (format!("{}\ndecision := input.b", ask("input.a")), true),
        (
            format!("default decision := \"allow\"\n{}", ask("input.a")),
            true,
        ),
        (ask("input.a in {\"x\", 1, -2.5}"), true),
        (ask("1, 2 in {1: 2}"), true),
        (ask("data.limits.most > 1"), true),
        (ask("[input.a, {\"b\": input.b}] == input.list"), true),
        (
            format!("unused := [x | some x in input.a]\n{}", ask("input.a")),
            true,
        ),
        (
            "import data.limits as l\ndecision := \"ask\" if l.names[0] == \"x\"".to_owned(),
            true,
        ),
        // Most of the following policies are not plain.
        (ask("{ x := input.a; x == 1 }"), false),
        (ask("input.a = 1"), false),
        (ask("some x in input.a"), false),
        (ask("input.a[_]"), false),
        (ask("input.a[input.b]"), false),
        (ask("every x in input.a { x == 1 }"), false),
        (ask("input.a + 1 == 2"), false),
        (ask("input.a == 1 with input.a as 1"), false),
        (ask("count([x | x := input.a]) == 1"), false),
        (ask("count(input.a, 1)"), false),
        (ask("time.now_ns() > 0"), false),
        (ask("data.mcp.authz.known.x"), true),
        (ask("data.limits.names[0] == \"x\""), false),
        (ask("count(data.mcp) > 1; input.a == data.other.x"), false),
        ("f(x) := x\ndecision := f(\"ask\")".to_owned(), false),
        (
            "count(x) := 1\ndecision := \"ask\" if count(input.a) == 1".to_owned(),
            false,
        ),
        (
            "o[k] := 1 if k := input.a\ndecision := \"ask\" if o".to_owned(),
            false,
        ),
        (
            "a.b := 1\ndecision := \"ask\" if a.b == 1".to_owned(),
            false,
        ),
        ("known := 1\ndecision := \"ask\" if known".to_owned(), false),
    ];
    testkit::each_row(&cases, |(rules, is_plain)| {
        // A policy that cannot be loaded counts as not plain.
        let found = Program::compile(&policy(rules), "mcp/authz");
        let found = found.is_ok_and(|program| program.is_plain());
        assert_eq!(found, *is_plain, "{rules}");
    });
}

#[test]
fn rules_that_refer_to_rules_are_plain_up_to_a_depth() {
    let chain = |length: usize| {
        let rule = |n: usize| format!("r{n} if {{ r{}; input.a }}\n", n + 1);
        let rules: String = (0..length).map(rule).collect();
        policy(&format!(
            "decision := \"ask\" if r0\n{rules}r{length} if input.b"
        ))
    };
    let (short, long) = (program(&chain(30)), program(&chain(300)));
    assert!(short.is_plain());
    assert!(!long.is_plain());
    assert_eq!(decided(&short, &json!({"a": 1, "b": 1})), "Ask: None");
}

#[test]
fn an_evaluation_is_short_if_its_functions_are_linear_and_its_input_is_small() {
    let ask = |condition: &str| program(&policy(&format!("decision := \"ask\" if {condition}")));
    let cases = [
        ("startswith(input.a, \"x\")", 1 << 10, true),
        ("startswith(input.a, \"x\")", 1 << 20, false),
        ("contains(lower(input.a), \"x\")", 1 << 10, true),
        ("regex.match(`^x-[a-z]+$`, input.a)", 1 << 10, true),
        ("regex.match(input.b, input.a)", 0, false),
        ("indexof(input.a, input.b) > 1", 0, false),
        ("sort(input.a) == input.b", 0, false),
        ("concat(input.b, [input.a]) == \"\"", 0, false),
    ];
    testkit::each_row(cases, |(condition, bytes, is_short)| {
        let found = ask(condition).max_nanoseconds(bytes);
        assert_eq!(
            found.is_some_and(|time| time <= 1_000_000),
            is_short,
            "{found:?}"
        );
    });
}

#[test]
fn a_plain_policy_that_exceeds_its_time_limit_times_out() {
    let rules: String = (0..200)
        .map(|n| format!("found contains {n} if input.a > {n}\n"))
        .collect();
    let program = program(&policy(&format!(
        "{rules}decision := \"ask\" if count(found) > 1"
    )));
    assert!(program.is_plain());
    let ended = program.evaluate(&Value::new_object(), Some(Instant::now()));
    assert_eq!(ended.map(|_| ()), Err(EvaluationError::TimedOut));
}

/// Conditions on an input, of every kind that is plain.
const CONDITIONS: [&str; 48] = [
    "input.a == \"x\"",
    "input.a.b != 1",
    "input.b > 2",
    "input.b == 1",
    "input.b == 1.0",
    "input.b < -1",
    "input.a <= input.b",
    "input.b == 12345678901234567890123",
    "input.b >= 1e300",
    "startswith(input.a, \"x\")",
    "endswith(input.a, \"y\")",
    "contains(input.a, \"xy\")",
    "contains(lower(input.a), upper(\"x\"))",
    "not startswith(input.a, \"x\")",
    "startswith(input.missing, input.a)",
    "input.a in input.list",
    "input.missing in input.list",
    "not input.a in input.missing",
    "0, input.a in input.list",
    "\"b\", input.missing in input.a",
    "input.a in {\"x\", 1}",
    "not input.a.b",
    "not \"x\" in input.list",
    "count(input.list) > 1",
    "count(input.a)",
    "regex.match(\"^x\", input.a)",
    "regex.match(input.a, \"x\")",
    "input.list[0] == 2",
    "input.list[0][1] == input.a",
    "input[\"a\"].b == null",
    "contains(concat(\",\", input.list), input.a)",
    "[input.a, input.b] == input.list",
    "{input.a, 1} == {1, \"x\"}",
    "{\"b\": input.a.b} == input.a",
    "object.get(input.a, \"b\", false)",
    "contains(input.a, \"x\") == input.b",
    "startswith(input.a, \"x\") in input.list",
    "[endswith(input.a, \"x\"), {input.b}] == [true, {1}]",
    "not contains(input.a, input.a) in {input.b, false}",
    "data.limits.most == input.b",
    "input.a in data.limits.names",
    "data.limits.missing == 1",
    "helper",
    "not helper",
    "helper != input.b",
    "helper.b == 1",
    "shared.flag",
    "not data.lib.flag == input.b",
];

fn rules() -> impl Strategy<Value = (String, String)> {
    let body = || prop::collection::vec(prop::sample::select(&CONDITIONS[..]), 1..3);
    let bodies = || prop::collection::vec(body(), 1..4);
    let value = prop::sample::select(vec![
        "\"ask\"",
        "\"allow\"",
        "input.a",
        "input.b",
        "input.list",
        "true",
        "1",
        "1.0",
    ]);
    let values = prop::collection::vec(value, 5);
    (bodies(), bodies(), body(), values, any::<[bool; 3]>()).prop_map(
        |(found, helpers, first, values, [default, fails, library])| {
            let without_helper = |body: &[&str]| {
                let body = body.join("\n").replace("not helper", "input.b");
                body.replace("helper", "input.a")
                    .replace("shared.flag", "input.b")
            };
            let mut text = String::from("import data.lib as unused\nimport data.lib.shared\n");
            if default {
                text.push_str("default decision := \"deny_abort\"\ndefault helper := 1\n");
            }
            for (body, value) in helpers.iter().zip(&values) {
                // An evaluation fails if definitions have different values.
                let value = if fails { value } else { "true" };
                let body = without_helper(body).replace("data.lib.flag", "input.b");
                text.push_str(&format!("helper := {value} if {{ {body} }}\n"));
            }
            for (number, (body, value)) in found.iter().zip(&values).enumerate() {
                let key = if default {
                    value.to_string()
                } else {
                    number.to_string()
                };
                text.push_str(&format!(
                    "found contains {key} if {{ {} }}\n",
                    body.join("\n")
                ));
            }
            let first = first.join("\n");
            text.push_str(&format!("decision := {} if {{ {first} }}\n", values[3]));
            text.push_str("else := \"deny_continue\" if count(found) > 1\n");
            text.push_str(&format!("else := {} if count(found) == 1\n", values[4]));
            text.push_str("else if input.b\n");
            text.push_str("reason := sprintf(\"%v\", [found])\n");
            text.push_str("modified := {\"found\": found, \"a\": input.a}\n");
            let flag = if library {
                "flag := input.b if input.a"
            } else {
                "default flag := false"
            };
            (
                text,
                format!("package lib\nimport rego.v1\n{flag}\nshared := {{\"flag\": flag}}\n"),
            )
        },
    )
}

fn input() -> impl Strategy<Value = serde_json::Value> {
    let scalar = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(serde_json::Value::from),
        prop::sample::select(vec!["x", "xy", "X", "", "ask", "("])
            .prop_map(serde_json::Value::from),
        (-2_i64..4).prop_map(serde_json::Value::from),
        prop::sample::select(vec![1.0, 1.5, 1e300, 12_345_678_901_234_567_890_123.0])
            .prop_map(serde_json::Value::from),
        Just(json!(u64::MAX)),
    ];
    let list = prop::collection::vec(scalar.clone(), 0..4).prop_map(serde_json::Value::from);
    let object = prop::collection::btree_map("[bx]", scalar.clone(), 0..3)
        .prop_map(|members| serde_json::Value::Object(members.into_iter().collect::<Map<_, _>>()));
    let nested = prop::collection::vec(list.clone(), 0..3).prop_map(serde_json::Value::from);
    let value = || {
        prop_oneof![4 => scalar.clone(), 1 => list.clone(), 1 => object.clone(), 1 => nested.clone()]
            .boxed()
    };
    prop::collection::btree_map(prop::sample::select(vec!["a", "b", "list"]), value(), 0..4)
        .prop_map(|members| json!(members))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(512)
    ))]

    #[test]
    fn both_evaluators_have_the_same_result(
        (rules, library) in rules(),
        inputs in prop::collection::vec(input(), 1..6),
    ) {
        let files = [format!("package mcp.authz\nimport rego.v1\n{rules}"), library];
        let bundle = bundle(&files);
        // Neither evaluator loads a policy that fails for a call without arguments.
        let plain = Program::compile(&bundle, "mcp/authz");
        let loaded = Loaded::read(&bundle, "mcp/authz").and_then(Program::interpreted);
        prop_assert_eq!(plain.is_ok(), loaded.is_ok(), "{}", rules);
        if let (Ok(plain), Ok(interpreter)) = (plain, loaded) {
            prop_assert!(plain.is_plain(), "{}", rules);
            prop_assert!(!interpreter.is_plain());
            for input in inputs {
                let expected = decided(&interpreter, &input);
                prop_assert_eq!(decided(&plain, &input), expected, "{}\n{}", rules, input);
            }
        }
    }
}
