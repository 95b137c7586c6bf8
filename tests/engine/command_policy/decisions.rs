//! The input that a command gets, and what counts as its decision.

use addons::contract::*;
use serde_json::{Value, json};

use super::fixture::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_object_that_a_command_prints_is_its_decision() {
    let policy = "import json, sys\nprint(json.dumps(json.load(sys.stdin)['arguments']))";
    let fixture = Fixture::new(policy);
    for (printed, effect) in [
        (json!({ "decision": "allow" }), Effect::Allow),
        (
            json!({ "decision": "deny_continue", "reason": "r" }),
            Effect::DenyContinue,
        ),
        (
            json!({ "decision": "deny_abort", "rationale": "r" }),
            Effect::DenyAbort,
        ),
        (json!({ "decision": "ask", "reason": "r" }), Effect::Ask),
        (
            json!({ "decision": "redact", "modified": { "to": "x" } }),
            Effect::Redact,
        ),
    ] {
        let decision = fixture.call(&printed).await.unwrap();
        assert_eq!(decision.effect, effect);
        let has_reason = printed.get("reason").or(printed.get("rationale")).is_some();
        assert_eq!(decision.reason.as_deref(), has_reason.then_some("r"));
        let modified = decision
            .modified
            .map(|text| serde_json::from_str(text.get()).unwrap());
        assert_eq!(modified, printed.get("modified").cloned());
    }
    let metrics = fixture.metrics();
    for line in [
        "proxy_mcp_policy_decisions_total{bundle=\"command\",decision=\"ask\"} 1",
        "proxy_mcp_policy_decisions_total{bundle=\"command\",decision=\"failed\"} 0",
        "proxy_mcp_policy_duration_seconds_count{bundle=\"command\"} 5",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    fixture.settle().await;
}

/// Reports the environment and the standard input as the replacement of the arguments.
const REPORT: &str = "import json, os, sys
text = sys.stdin.read()
seen = {
    'stdin': json.loads(text)['tool'], 'bytes': len(text), 'same': os.environ.get('POLICY_INPUT') == text,
    'names': sorted(os.environ), 'source': os.environ['POLICY_SRC'][:11], 'cpus': len(os.sched_getaffinity(0)),
}
print(json.dumps({'decision': 'redact', 'modified': seen}))";

const DOCUMENTED: [&str; 9] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "MODE",
    "PATH",
    "POLICY_INPUT",
    "POLICY_SRC",
    "TMPDIR",
    "TZ",
];
/// Variables that Python sets in the C locale, and that the shell of a version manager sets.
const OF_WRAPPERS: [&str; 5] = ["LC_CTYPE", "OLDPWD", "PWD", "SHLVL", "_"];

async fn report(fixture: &Fixture, arguments: &Value) -> Value {
    let decision = fixture.call(arguments).await.unwrap();
    serde_json::from_str(decision.modified.unwrap().get()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_input_is_on_standard_input_and_up_to_120_kib_in_a_variable() {
    let fixture = Fixture::new(REPORT);
    let seen = report(&fixture, &json!({ "to": "ä\u{1}" })).await;
    assert_eq!(
        (&seen["stdin"], &seen["same"]),
        (&json!("send"), &json!(true))
    );
    let around = r#"{"tool":"send","arguments":""}"#.len();
    for (length, same) in [
        (120 << 10, true),
        ((120 << 10) + 1, false),
        (3 << 20, false),
    ] {
        let seen = report(&fixture, &json!("x".repeat(length - around))).await;
        assert_eq!(seen["bytes"], length);
        assert_eq!(seen["same"], same, "{length}");
        let names = seen["names"].as_array().unwrap();
        assert!(names.contains(&json!("POLICY_INPUT")), "{length}");
    }
    let refused = fixture.call(&json!("x".repeat(5 << 20))).await;
    assert!(
        matches!(refused, Err(EvaluatorError::Failed(_))),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_message_cannot_make_a_policy_use_a_default_for_its_input() {
    let policy = "import json, os\njson.loads(os.environ.get('POLICY_INPUT', '{}'))\nprint('{\"decision\": \"allow\"}')";
    let fixture = Fixture::new(policy);
    fixture.call(&json!("x")).await.unwrap();
    let failed = fixture.call(&json!("x".repeat(120 << 10))).await;
    assert!(
        matches!(failed, Err(EvaluatorError::Failed(_))),
        "{failed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_has_only_the_documented_variables() {
    for confine in ["namespaces", "none"] {
        let keys = json!({ "env": { "MODE": "strict" }, "confine": confine });
        let fixture = Fixture::with(REPORT, &keys);
        let seen = report(&fixture, &json!({})).await;
        let known = |name: &str| DOCUMENTED.contains(&name) || OF_WRAPPERS.contains(&name);
        let names = seen["names"].as_array().unwrap().iter();
        let names = names.map(|name| name.as_str().unwrap());
        let other: Vec<_> = names
            .filter(|name| !known(name) && !name.contains("PYENV"))
            .collect();
        assert_eq!(other, [""; 0], "{confine}");
        assert_eq!(seen["source"], "import json");
        assert_eq!(seen["cpus"], 1, "{confine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_a_valid_decision_fails_the_evaluation() {
    let allow = "print('{\"decision\": \"allow\"}')\n";
    for (what, policy) in [
        ("it crashes", "raise SystemExit(1)".to_owned()),
        (
            "an exception",
            format!("{allow}import sys; sys.stdout.flush()\n1/0"),
        ),
        (
            "a code after the decision",
            format!("{allow}raise SystemExit(3)"),
        ),
        (
            "a signal after the decision",
            format!("{allow}import os, sys; sys.stdout.flush(); os.kill(os.getpid(), 9)"),
        ),
        ("nothing is printed", String::new()),
        ("two decisions", allow.repeat(2)),
        ("no decision", "print('{}')".to_owned()),
        (
            "another word",
            "print('{\"decision\": \"yes\"}')".to_owned(),
        ),
        ("a text before it", format!("print('debug')\n{allow}")),
        ("more than 64 KiB", format!("{allow}print(' ' * 65536)")),
        ("endless output", "while True: print('x' * 1000)".to_owned()),
        ("no memory", format!("x = bytearray(1 << 30)\n{allow}")),
    ] {
        let fixture = Fixture::with(&policy, &json!({ "memory": "64MB" }));
        let failed = fixture.call(&json!({})).await;
        let Err(EvaluatorError::Failed(text)) = failed else {
            panic!("{what}: {failed:?}");
        };
        assert_eq!(
            text, "the policy command failed; the log has the reason",
            "{what}"
        );
        let line = "proxy_mcp_policy_decisions_total{bundle=\"command\",decision=\"failed\"} 1";
        assert!(fixture.metrics().contains(line), "{what}");
        fixture.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_need_neither_read_its_input_nor_close_its_output_late() {
    let policy = "import os\nos.close(0)\nos.write(1, b'{\"decision\": \"allow\"}')\nos.close(1)\nos.write(2, b'x' * 1000000)";
    let fixture = Fixture::new(policy);
    let decision = fixture.call(&json!("x".repeat(1 << 20))).await.unwrap();
    assert_eq!(decision.effect, Effect::Allow);
}
