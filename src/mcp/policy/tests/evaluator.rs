//! The evaluator, from bundles on disk to decisions and metrics.

use std::fs;
use std::time::Duration;

use addons::contract::settings::Place;
use addons::contract::{ContainerId, Effect};
use addons::mcp::PoliciesSettings;
use prometheus::{Encoder, Registry, TextEncoder};
use testkit::each_row_async;

use super::*;
use crate::mcp::Machine;

const ARGUMENTS: &str = r#"{"to": "a@example.com"}"#;

struct Fixture {
    _directory: tempfile::TempDir,
    evaluator: RegoEvaluator,
    unloaded: Vec<Unloaded>,
    settings: PoliciesSettings,
    registry: Registry,
}

/// An evaluation of a call of the tool `send` with these arguments. The deadline is in 200 ms.
fn evaluation(arguments: &str) -> Evaluation {
    let mut input = PolicyInput::default();
    input.text("tool", "send");
    input.json("arguments", arguments);
    Evaluation {
        container: ContainerId::parse("agent-1").unwrap(),
        input,
        decided: 0,
        ends: Instant::now().checked_add(Duration::from_millis(200)),
    }
}

/// What a command could see; there is none.
fn no_machine() -> Machine {
    Machine::new("".into(), Vec::new())
}

impl Fixture {
    /// Loads bundles; each is given by its id, its rules and the method that it is for.
    fn new(bundles: &[(&str, &str, &str)], on_unavailable: OnUnavailable) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = bundles.iter().map(|(id, rules, method)| {
            let path = directory.path().join(id);
            fs::create_dir(&path).unwrap();
            let policy = format!("package mcp.authz\n{rules}\n");
            fs::write(path.join("authz.rego"), policy).unwrap();
            BundleSettings {
                id: (*id).into(),
                path,
                entrypoint: "mcp/authz".into(),
                methods: vec![(*method).into()],
                key: "policies.bundles[0]".into(),
                place: Place { line: 1, column: 1 },
            }
        });
        let settings: Vec<_> = settings.collect();
        let registry = Registry::new();
        let metrics = Arc::new(PolicyMetrics::new(&registry).unwrap());
        let threads = Arc::new(PolicyThreads::start().unwrap());
        let settings = PoliciesSettings {
            bundles: settings,
            ..PoliciesSettings::default()
        };
        let mut policies = Policies::load(&settings, None, &no_machine());
        let unloaded = std::mem::take(&mut policies.unloaded);
        let bundles = policies.bundles;
        Self {
            _directory: directory,
            evaluator: RegoEvaluator::new(bundles, on_unavailable, threads, metrics),
            unloaded,
            settings,
            registry,
        }
    }

    async fn call(&self) -> Result<Vec<Decision>, EvaluatorError> {
        let decided = self.evaluator.evaluate("tools/call", evaluation(ARGUMENTS));
        decided.await.map(|decisions| decisions.all)
    }

    fn metrics(&self) -> String {
        let mut text = Vec::new();
        let families = self.registry.gather();
        TextEncoder::new().encode(&families, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }
}

#[tokio::test]
async fn every_bundle_for_the_method_is_evaluated_in_order() {
    let bundles = [
        (
            "one",
            "decision := \"allow\" if input.tool == \"send\"",
            "tools/call",
        ),
        (
            "two",
            "decision := \"ask\"\nreason := input.arguments.to",
            "tools/call",
        ),
        ("three", "decision := \"deny_abort\"", "elicitation/create"),
    ];
    let fixture = Fixture::new(&bundles, OnUnavailable::Deny);
    assert!(fixture.unloaded.is_empty(), "{:?}", fixture.unloaded);
    assert!(fixture.evaluator.covers("tools/call"));
    assert!(fixture.evaluator.covers("elicitation/create"));
    assert!(!fixture.evaluator.covers("tools/list"));
    let decisions = fixture.call().await.unwrap();
    let [one, two] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert_eq!((&*one.bundle, &*two.bundle), ("one", "two"));
    assert_eq!((one.effect, two.effect), (Effect::Allow, Effect::Ask));
    assert_ne!(one.revision, two.revision);
    assert_eq!(two.reason.as_deref(), Some("a@example.com"));
    let metrics = fixture.metrics();
    for line in [
        "proxy_mcp_policy_decisions_total{bundle=\"one\",decision=\"allow\"} 1",
        "proxy_mcp_policy_decisions_total{bundle=\"two\",decision=\"ask\"} 1",
        "proxy_mcp_policy_decisions_total{bundle=\"three\",decision=\"deny_abort\"} 0",
        "proxy_mcp_policy_duration_seconds_count{bundle=\"two\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn an_evaluation_stops_at_a_redaction_and_the_next_continues_after_it() {
    let redacting = "decision := \"redact\"\nmodified := object.union(input.arguments, {\"x\": 1})";
    let bundles = [
        ("a", "decision := \"allow\"", "tools/call"),
        ("b", redacting, "tools/call"),
        ("c", redacting, "elicitation/create"),
        ("d", "decision := ", "tools/call"),
        ("e", "decision := \"ask\"", "tools/call"),
        ("f", redacting, "tools/call"),
    ];
    let fixture = Fixture::new(&bundles, OnUnavailable::Allow);
    let mut found = Vec::new();
    for decided in [0, 2, 4] {
        let evaluation = Evaluation {
            decided,
            ..evaluation(ARGUMENTS)
        };
        let decisions = fixture.evaluator.evaluate("tools/call", evaluation);
        let Decisions { all, more } = decisions.await.unwrap();
        let bundles: Vec<_> = all.iter().map(|one| one.bundle.to_string()).collect();
        found.push((bundles.concat(), more));
    }
    let expected = [("ab", true), ("ef", false), ("", false)];
    assert_eq!(found, expected.map(|(ids, more)| (ids.to_owned(), more)));
    let line = "proxy_mcp_policy_decisions_total{bundle=\"d\",decision=\"unavailable\"} 1";
    assert!(
        fixture.metrics().contains(line),
        "the bundle that is not loaded counts once"
    );
}

#[tokio::test]
async fn a_bundle_that_is_not_loaded_denies_unless_on_unavailable_is_allow() {
    let bundles = [
        ("good", "decision := \"deny_continue\"", "tools/call"),
        ("bad", "decision := ", "tools/call"),
    ];
    let fixture = Fixture::new(&bundles, OnUnavailable::Deny);
    let [unloaded] = &fixture.unloaded[..] else {
        panic!("{:?}", fixture.unloaded)
    };
    assert_eq!(unloaded.settings.id(), "bad");
    assert!(
        unloaded.error.to_string().contains("authz.rego:"),
        "{}",
        unloaded.error
    );
    let denied = fixture.call().await.unwrap_err();
    let expected = "the policy bundle \"bad\" is not loaded";
    assert!(
        matches!(&denied, EvaluatorError::Unavailable(text) if text == expected),
        "{denied}"
    );

    let fixture = Fixture::new(&bundles, OnUnavailable::Allow);
    let decisions = fixture.call().await.unwrap();
    assert_eq!(decisions.len(), 1);
    assert_eq!(decisions[0].effect, Effect::DenyContinue);
    let line = "proxy_mcp_policy_decisions_total{bundle=\"bad\",decision=\"unavailable\"} 1";
    assert!(fixture.metrics().contains(line));
}

#[tokio::test]
async fn an_error_quotes_an_invalid_answer_and_no_other_text_of_the_policy() {
    let conflict =
        "decision := \"allow\" if input.arguments.to\ndecision := \"ask\" if input.arguments";
    let fixture = Fixture::new(&[("p", conflict, "tools/call")], OnUnavailable::Deny);
    let error = fixture.call().await.unwrap_err();
    assert_eq!(error.to_string(), "the policy \"p\" failed");
    let word = Fixture::new(
        &[("p", "decision := \"yes\"", "tools/call")],
        OnUnavailable::Deny,
    );
    let error = word.call().await.unwrap_err().to_string();
    assert!(
        error.starts_with("the policy \"p\": \"yes\" is not a decision"),
        "{error}"
    );
    assert!(fixture.metrics().contains("decision=\"failed\"} 1"));
}

#[tokio::test]
async fn an_endless_policy_times_out_and_others_are_still_evaluated() {
    let endless = "xs := [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]\n\
        n := count([1 | input.arguments.to; some a in xs; some b in xs; some c in xs; some d in xs;\
        some e in xs; some f in xs; some g in xs; a + b + c + d + e + f + g < 0])\n\
        decision := \"allow\" if n == 0";
    let bundles = [
        ("endless", endless, "tools/call"),
        ("other", "decision := \"allow\"", "elicitation/create"),
    ];
    let fixture = Fixture::new(&bundles, OnUnavailable::Deny);
    let calls = (0..16).map(|_| fixture.call());
    for result in futures_util::future::join_all(calls).await {
        assert!(
            matches!(result, Err(EvaluatorError::TimedOut)),
            "{result:?}"
        );
    }
    let other = fixture
        .evaluator
        .evaluate("elicitation/create", evaluation(ARGUMENTS));
    assert_eq!(other.await.unwrap().all.len(), 1);
}

/// Counts the warnings while a function runs.
fn warnings(run: impl FnOnce()) -> usize {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(writer);
    tracing::subscriber::with_default(subscriber.finish(), run);
    let lines = fs::read_to_string(log.path()).unwrap();
    lines.matches(" WARN ").count()
}

#[tokio::test(start_paused = true)]
async fn the_warnings_about_a_policy_are_bounded_and_time_outs_displace_no_failure() {
    let invalid = "decision := input.tool";
    let conflict =
        "decision := \"allow\" if input.arguments.to\ndecision := \"ask\" if input.arguments.to";
    for (id, rules) in [("invalid", invalid), ("conflict", conflict)] {
        let fixture = Fixture::new(&[(id, rules, "tools/call")], OnUnavailable::Deny);
        assert!(fixture.unloaded.is_empty(), "{:?}", fixture.unloaded);
        let mut query = Query {
            bundles: Arc::clone(&fixture.evaluator.bundles),
            metrics: Arc::clone(&fixture.evaluator.metrics),
            method: "tools/call".into(),
            ends: Some(Instant::now()),
        };
        for ends in [query.ends, None] {
            query.ends = ends;
            let input = evaluation(ARGUMENTS).input;
            let flood = || (0..1000).for_each(|_| assert!(query.evaluate(&input, 0).is_err()));
            // The last one says that further warnings are left out.
            assert_eq!(warnings(flood), 21, "{id}, {ends:?}");
            assert_eq!(warnings(flood), 0, "{id}, {ends:?}");
        }
    }
}

#[tokio::test]
async fn inputs_that_are_too_large_too_deep_or_not_json_are_errors() {
    let fixture = Fixture::new(
        &[(
            "p",
            "decision := \"allow\" if input.arguments",
            "tools/call",
        )],
        OnUnavailable::Deny,
    );
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let large = format!("\"{}\"", "x".repeat(MAX_INPUT_BYTES));
    for (input, expected) in [
        ("{".to_owned(), "arguments cannot be parsed as JSON"),
        (deep, "arguments cannot be parsed as JSON"),
        (large, "bytes long, the limit is 4194304"),
    ] {
        let result = fixture
            .evaluator
            .evaluate("tools/call", evaluation(&input))
            .await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_stored_policy_that_cannot_be_in_force_denies_instead_of_the_bundle() {
    let bundle = ("main", "decision := \"allow\"", "tools/call");
    let stored = |bundle: &str, package: &str| {
        let source = format!("package {package}\n\ndecision := \"deny_abort\"\n");
        serde_json::json!({
            "version": 1,
            "bundle": bundle,
            "source": source,
            "set_by": "ann",
            "set_at": "2030-01-01T00:00:00Z",
        })
        .to_string()
    };
    let replaced = stored("main", "mcp.authz");
    let (renamed, cut) = (stored("old", "mcp.authz"), stored("main", "mcp.authz\0"));
    each_row_async(
        [
            ("in force", &*replaced, Some("main"), None),
            ("no key", &*replaced, None, Some("editable: main")),
            ("renamed", &*renamed, Some("main"), Some("editable: old")),
            ("damaged", "{", Some("main"), Some("cannot be read")),
            ("damaged, no key", "{", None, Some("cannot be read")),
            ("cut", &*cut, Some("main"), Some("U+0000")),
        ],
        async |(_, stored, editable, problem)| {
            let fixture = Fixture::new(&[bundle], OnUnavailable::Deny);
            let directory = fixture._directory.path();
            fs::write(directory.join("policy.json"), stored).unwrap();
            let mut settings = fixture.settings.clone();
            settings.editable = editable.map(Into::into);
            let policies = Policies::load(&settings, Some(directory), &no_machine());
            assert_eq!(policies.text.is_stored_policy_loaded(), problem.is_none());
            let threads = Arc::clone(&fixture.evaluator.threads);
            let metrics = Arc::clone(&fixture.evaluator.metrics);
            let evaluator =
                RegoEvaluator::new(policies.bundles, OnUnavailable::Deny, threads, metrics);
            let decided = evaluator
                .evaluate("tools/call", evaluation(ARGUMENTS))
                .await;
            let Some(problem) = problem else {
                assert_eq!(decided.unwrap().all[0].effect, Effect::DenyAbort);
                return;
            };
            assert!(matches!(decided, Err(EvaluatorError::Unavailable(_))));
            let [unloaded] = &policies.unloaded[..] else {
                panic!("{:?}", policies.unloaded)
            };
            let error = unloaded.config_error().to_string();
            assert!(error.contains(problem), "{error}");
        },
    )
    .await;
}
