//! Compiled bundles: the decisions of their policies, and the policies that are refused.

use serde_json::json;

use super::*;
use crate::mcp::policy::bundle::Manifest;

/// A bundle with one policy, whose package is `mcp.authz`.
fn bundle(rules: &str) -> Bundle {
    Bundle {
        policies: vec![(
            "authz.rego".to_owned(),
            format!("package mcp.authz\n{rules}\n"),
        )],
        data: json!({"limits": {"most": 3}}),
        manifest: Manifest::default(),
        digest: [0; 32],
    }
}

fn program(rules: &str) -> Program {
    Program::compile(&bundle(rules), "mcp/authz").unwrap()
}

fn refusal(rules: &str) -> String {
    match Program::compile(&bundle(rules), "mcp/authz") {
        Ok(_) => panic!("the policy was accepted"),
        Err(error) => error.to_string(),
    }
}

fn parsed(input: &serde_json::Value) -> Value {
    serde_json::from_value(input.clone()).unwrap()
}

/// The answer as `effect: reason`, or the error.
fn decided(program: &Program, input: &serde_json::Value) -> String {
    match program.evaluate(
        &parsed(input),
        Instant::now().checked_add(Duration::from_secs(5)),
    ) {
        Ok(Answer {
            effect,
            reason,
            modified,
            ..
        }) => {
            let effect = match modified {
                Some(modified) => format!("redact {modified}"),
                None => format!("{effect:?}"),
            };
            format!("{effect}: {}", reason.unwrap_or_default())
        }
        Err(error) => format!("{error:?}"),
    }
}

/// The text between two markers of a document.
fn excerpt(document: &str, from: &str, to: &str) -> String {
    let (_, rest) = document.split_once(from).unwrap();
    let (text, _) = rest.split_once(to).unwrap();
    text.replace("package mcp.authz", "")
}

#[test]
fn a_revision_stands_for_the_files_and_the_entrypoint() {
    let rules = "decision := \"allow\"\nother := {\"decision\": \"allow\"}";
    let revision = |digest, entrypoint| {
        let bundle = Bundle {
            digest,
            ..bundle(rules)
        };
        Program::compile(&bundle, entrypoint).unwrap().revision()
    };
    let first = revision([0; 32], "mcp/authz");
    assert_eq!(revision([0; 32], "mcp/authz"), first);
    assert_ne!(revision([1; 32], "mcp/authz"), first);
    assert_ne!(revision([0; 32], "mcp/authz/other"), first);
}

#[test]
fn the_policies_of_the_documents_deny_what_they_cannot_judge() {
    let tour = include_str!("../../../../docs/mcp.md");
    let tour = excerpt(tour, "authz.rego <<'END'\n", "\nEND\n");
    let sidecar = include_str!("../../../../docs/coding-sidecar.md");
    let sidecar = excerpt(sidecar, "```rego\n", "```");
    for (rules, tool, other, field, allowed, denied) in [
        (tour, "add", "read", "text", "buy milk", "The PassWord"),
        (
            sidecar,
            "bash",
            "ls",
            "command",
            "git status",
            "git push -f",
        ),
    ] {
        let program = program(&rules);
        let decide = |tool: &str, value: serde_json::Value| {
            decided(
                &program,
                &json!({ "tool": tool, "arguments": { field: value } }),
            )
        };
        assert!(decide(tool, allowed.into()).starts_with("Allow"));
        let nothing = json!({ "tool": other, "arguments": {} });
        assert!(decided(&program, &nothing).starts_with("Allow"));
        for value in [
            json!(denied),
            json!([denied]),
            json!({ "a": denied }),
            json!(1),
            json!(true),
            json!(false),
            json!(null),
        ] {
            let decision = decide(tool, value.clone());
            assert!(decision.starts_with("DenyContinue"), "{value}: {decision}");
        }
        let missing = json!({ "tool": tool, "arguments": {} });
        assert!(decided(&program, &missing).starts_with("DenyContinue"));
    }
}

#[test]
fn each_value_of_the_entrypoint_has_its_decision_or_error() {
    let cases = [
        ("decision := \"allow\"", "Allow: "),
        (
            "decision := \"deny_continue\"\nreason := \"no\"",
            "DenyContinue: no",
        ),
        ("decision := \"deny_abort\"", "DenyAbort: "),
        ("decision := \"ask\"", "Ask: "),
        (
            "decision := \"redact\"\nmodified := {\"a\": input.n, \"s\": {1}}",
            "redact {\"a\":7,\"s\":[1]}: ",
        ),
        (
            "decision := \"allow\" if input.n > data.limits.most",
            "Allow: ",
        ),
        (
            "decision := \"allow\" if input.n < 0",
            "DenyContinue: the policy is undefined for this input",
        ),
        ("decision := 1", "Answer(\"`decision` is not a string\")"),
        (
            "decision := \"allow\"\nreason := 1",
            "Answer(\"`reason` is not a string\")",
        ),
        (
            "decision := \"permit\"",
            "Answer(\"\\\"permit\\\" is not a decision",
        ),
        (
            "decision := \"redact\"",
            "Answer(\"the decision is redact, and",
        ),
        (
            "decision := \"redact\"\nmodified := 1",
            "Answer(\"`modified` is not an object\")",
        ),
        (
            "decision := \"allow\" if input.n\ndecision := \"ask\" if input.n",
            "Failed(",
        ),
        ("decision := d if some d in [input.a, input.b]", "Failed("),
        (
            "half := \"a\" if input.n\nhalf := \"b\" if input.n\ndecision := \"allow\" if not half",
            "Failed(",
        ),
        (
            "decision := \"allow\" if input.n == 7 with input.n as 7",
            "Allow: ",
        ),
    ];
    testkit::each_row(&cases, |(rules, expected)| {
        let found = decided(&program(rules), &json!({"n": 7, "a": "allow", "b": "ask"}));
        assert!(found.starts_with(expected), "{found}");
    });
}

#[test]
fn an_entrypoint_may_be_a_rule_whose_value_is_an_object() {
    let mut bundle = bundle("authz := {\"decision\": \"ask\", \"reason\": input.why}");
    bundle.policies[0].1 = bundle.policies[0].1.replace("mcp.authz", "mcp");
    let program = Program::compile(&bundle, "/mcp/authz").unwrap();
    assert_eq!(decided(&program, &json!({"why": "so"})), "Ask: so");
    let undefined = "DenyContinue: the policy is undefined for this input";
    assert_eq!(decided(&program, &json!({})), undefined);
}

#[test]
fn invalid_policies_are_refused_with_a_place_or_a_reason() {
    let cases = [
        ("decision := ", "authz.rego:3"),
        ("decision := no_such_function(1)", "no_such_function"),
        ("decision := x", "authz.rego:2"),
        ("other := 1", "neither a rule data.mcp.authz nor"),
        ("decision := http.send({})", "http.send"),
        ("decision := opa.runtime()", "opa.runtime"),
        (
            "decision := numbers.range(1, input.n)",
            "authz.rego: the result of numbers.range can take all memory; write every argument",
        ),
        (
            "x := [y | y := net.cidr_expand(input.c)]\ndecision := x",
            "net.cidr_expand can",
        ),
        ("decision := bits.lsh(1, input.n)", "bits.lsh can"),
        (
            "decision := \"ask\" if numbers.range(1, input.n) in [[7]]",
            "numbers.range can",
        ),
        (
            "x := {k: numbers.range(1, input.n) | some k in [1]}\ndecision := x",
            "numbers.range can",
        ),
        (
            "f(x) := x\ndecision := \"ask\" if f(1) with f as numbers.range",
            "authz.rego: `with … as numbers.range`: the result of numbers.range can",
        ),
        (
            "decision := \"ask\" if time.weekday(time.now_ns()) == \"Sunday\"",
            "authz.rego: time.weekday does not exist here; calculate with time.now_ns()",
        ),
        (
            "decision := data.mcp.authz.decision",
            "mcp.authz.decision depends on itself",
        ),
        (
            "decision := a.b\na := b[input.x]\nb := {\"x\": decision}",
            "depends on itself",
        ),
        (
            "f(x) := g(x)\ng(x) := f(x)\ndecision := f(1)",
            "mcp.authz.f depends on itself",
        ),
        (
            "a contains x if some x in b\nb contains x if some x in a\ndecision := a",
            "authz.a depends",
        ),
        (
            "decision := count([x | some x in data.mcp])",
            "depends on itself",
        ),
        ("decision := data[input.x].authz", "depends on itself"),
        (
            "decision := \"ask\" if { [path, value] := walk(input); value == 1 }",
            "authz.rego: write `walk` with two arguments",
        ),
        (
            "decision := \"ask\" if rand.intn(\"a\", 2) == 1",
            "authz.rego: the function rand.intn does not exist here",
        ),
        (
            "n := 1\ndecision := \"ask\" if { some n; input.tools[n] == 4 }",
            "authz.rego: `some n` has the name of a rule: give the variable another name",
        ),
    ];
    testkit::each_row(&cases, |(rules, expected)| {
        let error = refusal(rules);
        assert!(error.contains(expected), "{error}");
    });
}

#[test]
fn calls_whose_result_may_grow_faster_than_their_arguments_need_a_literal() {
    let first = "write the first argument of the call";
    let second = "write the second argument of the call";
    let first_or_second = "write the first or second argument of the call";
    let first_or_third = "write the first or third argument of the call";
    let cases = [
        ("replace(input.a, \"x\", input.b)", Some(first_or_third)),
        ("replace(input.a, input.b, \"\")", None),
        ("replace(\"abc\", \"b\", input.a)", None),
        ("regex.replace(input.a, `x`, input.b)", Some(first_or_third)),
        ("regex.replace(input.a, input.b, \"***\")", None),
        ("concat(input.a, input.list)", Some(first_or_second)),
        ("concat(\", \", input.list)", None),
        ("concat(input.a, [input.a, input.b])", None),
        (
            "concat(input.a, [x | some x in input.list])",
            Some(first_or_second),
        ),
        ("sprintf(input.a, [1])", Some(first)),
        ("sprintf(\"%s and %v\", [input.a, input.list])", None),
        (
            "regex.find_all_string_submatch_n(input.a, input.b, -1)",
            Some(first_or_second),
        ),
        ("regex.find_all_string_submatch_n(`(x)`, input.b, -1)", None),
        ("strings.replace_n(input.o, \"a\")", Some(first)),
        ("strings.replace_n({\"a\": input.b}, input.a)", Some(first)),
        (
            "strings.replace_n({\"a\": \"b\", \"c\": \"\"}, input.a)",
            None,
        ),
        ("json.patch(input.o, input.list)", Some(second)),
        (
            "json.patch(input.o, [{\"op\": \"add\", \"path\": \"/a\", \"value\": input.b}])",
            None,
        ),
        (
            "json.marshal_with_options(input.o, {\"indent\": input.a})",
            Some(second),
        ),
        (
            "json.marshal_with_options(input.o, {\"indent\": \" \"})",
            None,
        ),
        ("graph.reachable_paths(input.o, [\"a\"])", Some(first)),
        (
            "graph.reachable_paths({\"a\": [\"b\"], \"b\": []}, input.list)",
            None,
        ),
    ];
    testkit::each_row(cases, |(call, expected)| {
        let rules = format!("decision := \"allow\" if {call}");
        let refused = Program::compile(&bundle(&rules), "mcp/authz").err();
        match (refused.map(|error| error.to_string()), expected) {
            (None, None) => {}
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            (refused, _) => panic!("{call}: {refused:?}"),
        }
    });
}

#[test]
fn in_is_a_condition_and_has_no_value() {
    const IS_USED: &str = "authz.rego: the value of `in` is used";
    let refused = [
        "decision := \"ask\" if (input.a in [1]) == false",
        "decision := \"ask\" if is_known\nis_known := input.a in [1]",
        "decision := \"ask\" if is_known(input.a)\nis_known(x) := x in [1]",
        "decision := \"ask\" if count([input.a in [1]]) == 1",
        "decision := \"ask\" if { x := input.a in [1]; x == false }",
        "decision := \"ask\" if (1 in [2]) in [false]",
    ];
    testkit::each_row(refused, |rules| {
        let error = refusal(rules);
        assert!(error.contains(IS_USED), "{error}");
    });
    let conditions = [
        "input.a in [1]",
        "not input.b in [1]",
        "some x in input.list; x in [7]",
        "every x in input.list { x in {7} }",
        "count([x | some x in input.list; x in [7]]) == 1",
        "input.b in [2] with input.b as 2",
        "\"k\", 3 in {\"k\": 3}",
    ];
    testkit::each_row(conditions, |condition| {
        let program = program(&format!("decision := \"ask\" if {{ {condition} }}"));
        assert_eq!(
            decided(&program, &json!({"a": 1, "list": [7]})),
            "Ask: ",
            "{condition}"
        );
    });
}

#[test]
fn variables_with_the_names_of_rules_are_not_recursion() {
    let rules = r#"
        tool := f(input.tool)
        f(tool) := upper(tool)
        name := n if { n := tool }
        n := count([entry | some entry in input.tools])
        greater if every n in input.tools { n > 2 }
    "#;
    let conditions = ["name == \"A\"", "n == 2", "greater"];
    testkit::each_row(conditions, |condition| {
        let program = program(&format!("{rules}\ndecision := \"allow\" if {condition}"));
        let decided = decided(&program, &json!({"tool": "a", "tools": [3, 4]}));
        assert_eq!(decided, "Allow: ", "{condition}");
    });
}

#[test]
fn packages_outside_the_roots_and_the_reserved_package_are_refused() {
    let mut bundle = bundle("decision := \"allow\"");
    bundle.manifest.roots = vec!["mcp/other".to_owned(), "limits".to_owned()];
    let error = Program::compile(&bundle, "mcp/authz")
        .map(|_| ())
        .unwrap_err();
    let expected = "authz.rego: mcp/authz is outside the roots of .manifest: mcp/other, limits";
    assert_eq!(error.to_string(), expected);
    bundle.manifest = Manifest::default();
    let reserved = "package unified_proxy.entrypoint\nanswer := [[\"allow\"], [], []]\n".to_owned();
    bundle.policies.push(("x.rego".to_owned(), reserved));
    let error = Program::compile(&bundle, "mcp/authz")
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("is reserved"), "{error}");
}

#[test]
fn a_policy_that_takes_too_long_times_out_and_the_next_evaluation_works() {
    let program = program(
        "xs := [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]\n\
        n := count([1 | input.go; some a in xs; some b in xs; some c in xs; some d in xs;\
        some e in xs; some f in xs; some g in xs; a + b + c + d + e + f + g < 0])\n\
        decision := \"allow\" if n == 0",
    );
    let begun = Instant::now();
    let found = program.evaluate(
        &parsed(&json!({"go": true})),
        Instant::now().checked_add(Duration::from_millis(50)),
    );
    assert_eq!(found.map(|_| ()), Err(EvaluationError::TimedOut));
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(decided(&program, &json!({})), "Allow: ");
}

#[test]
fn an_evaluation_does_not_see_the_input_of_an_earlier_one() {
    for rules in [
        "decision := input.d",
        "decision := input.d if 1 == 1 with input.x as 1",
    ] {
        let program = program(rules);
        assert_eq!(decided(&program, &json!({"d": "allow"})), "Allow: ");
        assert!(decided(&program, &json!({})).contains("undefined"));
    }
}

#[test]
fn time_now_ns_is_constant_within_an_evaluation() {
    let rules = r#"
        year := 365 * 24 * 3600 * 1000000000
        times := {time.now_ns() | some x in numbers.range(1, 1000); x > 0}
        decision := "allow" if { count(times) == 1; some t in times; t > 50 * year; t < 500 * year }
    "#;
    assert_eq!(decided(&program(rules), &json!({})), "Allow: ");
}

#[test]
fn the_documented_formulas_for_hours_and_days_have_values_in_range() {
    let rules = r#"
        hour := floor(time.now_ns() / 3600000000000) % 24
        exact := (time.now_ns() % 86400000000000) / 3600000000000
        day := floor(time.now_ns() / 86400000000000) % 7
        decision := "allow" if { floor(exact) == hour; hour < 24; day < 7 }
    "#;
    assert_eq!(decided(&program(rules), &json!({})), "Allow: ");
}

#[test]
fn a_policy_that_calls_walk_accepts_only_smaller_inputs() {
    let walking = "decision := \"ask\" if { walk(input, [path, value]); value == 1 }\n";
    let both = [
        ("decision := \"ask\"", MAX_INPUT_BYTES),
        (walking, MAX_WALKED_BYTES),
    ];
    testkit::each_row(both, |(rules, limit)| {
        assert_eq!(program(rules).max_input(), limit);
    });
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let input = json!({"a": serde_json::from_str::<serde_json::Value>(&deep).unwrap()});
    assert_eq!(decided(&program(walking), &input), "Ask: ");
}

#[test]
fn a_policy_that_reads_more_than_the_result_depends_on_the_call() {
    testkit::each_row(
        [
            ("decision := \"allow\"", false),
            (
                "decision := \"deny_continue\" if input.result.isError",
                false,
            ),
            (
                "decision := \"redact\" if contains(json.marshal(input[\"result\"]), \"x\")",
                false,
            ),
            ("decision := input.phase", false),
            ("decision := \"allow\" if input.container == \"web\"", false),
            (
                "decision := \"deny_continue\" if input.security_level == \"Secret\"",
                false,
            ),
            ("decision := \"allow\" if input.tool == \"x\"", true),
            ("decision := \"allow\" if input[\"agent_id\"]", true),
            ("decision := \"allow\" if { some key; input[key] }", true),
            ("decision := \"allow\" if input.result[input.tool]", true),
            (
                "decision := \"allow\" if object.get(input, \"tool\", 1) == 2",
                true,
            ),
            (
                "decision := \"allow\" if helper(input)\nhelper(x) if x.tool",
                true,
            ),
        ],
        |(rules, depends)| {
            let program = Program::compile(&bundle(rules), "mcp/authz").unwrap();
            assert_eq!(program.depends_on_call(), depends, "{rules}");
        },
    );
}

#[test]
fn metadata_is_a_short_object_or_left_out() {
    testkit::each_row(
        [
            ("{\"a\": 1}", Some("{\"a\":1}")),
            ("\"text\"", None),
            ("{\"a\": input.long}", None),
        ],
        |(metadata, expected)| {
            let rules = format!("decision := \"allow\"\nmetadata := {metadata}");
            let program = Program::compile(&bundle(&rules), "mcp/authz").unwrap();
            let input = json!({ "long": "x".repeat(5000) });
            let answer = program.evaluate(&parsed(&input), None).unwrap();
            assert_eq!(answer.metadata.as_deref().map(|one| one.get()), expected);
        },
    );
}
