//! Evaluation of two policies with 50 rules that read the arguments. The plain policy is evaluated
//! on the calling thread. The other policy has one more rule, which needs the interpreter: its time
//! includes the hand-over to the interpreter's thread and back.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::settings::Place;
use addons::contract::{Evaluator, PolicyInput, PolicyQuestion, ReadMembers};
use addons::mcp::{Bundle, OnUnavailable};
use criterion::{Criterion, criterion_group, criterion_main};
use prometheus::Registry;
use rustix::time::{ClockId, clock_gettime};
use unified_proxy::mcp::policy::{Bundles, PolicyMetrics, PolicyThreads, RegoEvaluator};

/// Ten rules for each of five conditions, then `last`. No rule applies to [`input`].
fn policy(last: &str) -> String {
    let mut text = String::from(
        "package mcp.authz\n\
         import rego.v1\n\
         decision := \"deny_abort\" if count(found) > 3\n\
         else := \"deny_continue\" if count(found) > 0\n\
         else := \"allow\"\n\
         reason := concat(\", \", found) if count(found) > 0\n",
    );
    for n in 0..10 {
        for condition in [
            format!("input.tool == \"delete_{n}\"; input.arguments.force == true"),
            format!("startswith(input.arguments.path, \"/etc/{n}\")"),
            format!("endswith(input.arguments.to[0], \"@{n}.example.net\")"),
            format!("input.arguments.size > {}", 2000 + n),
            format!("regex.match(`^secret-{n}-[a-z]+$`, input.arguments.note)"),
        ] {
            text.push_str(&format!("found contains \"{n}\" if {{ {condition} }}\n"));
        }
    }
    text + last
}

/// An input of about 1 KB.
fn input(reads: ReadMembers) -> PolicyInput {
    let mut input = PolicyInput::of(reads);
    for (name, value) in [
        ("phase", "request"),
        ("method", "tools/call"),
        ("name", "mail_send"),
        ("server", "mail"),
        ("tool", "send"),
        ("agent_id", "agent-1"),
        ("container", "agent-1"),
        ("security_level", "Public"),
    ] {
        input.text(name, value);
    }
    let body = "lorem ipsum dolor sit amet ".repeat(24);
    let arguments = format!(
        r#"{{"path":"/home/user/file.txt","to":["a@example.com","b@example.com","c@example.com"],
        "size":1024,"force":false,"note":"hello","body":"{body}"}}"#
    );
    input.json("annotations", r#"{"openWorldHint":true}"#);
    input.json("arguments", &arguments);
    input
}

fn evaluator(policy: &str) -> RegoEvaluator {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("authz.rego"), policy).unwrap();
    let bundles = Bundles::load(&[Bundle {
        id: "bench".into(),
        path: directory.path().to_owned(),
        entrypoint: "mcp/authz".into(),
        methods: vec!["tools/call".into()],
        key: "policies.bundles[0]".into(),
        place: Place { line: 1, column: 1 },
    }]);
    assert!(bundles.unloaded.is_empty(), "{:?}", bundles.unloaded);
    let metrics = Arc::new(PolicyMetrics::new(&Registry::new()).unwrap());
    let threads = Arc::new(PolicyThreads::start().unwrap());
    RegoEvaluator::new(bundles, OnUnavailable::Deny, threads, metrics)
}

/// CPU time of all threads of the process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap()
}

fn policies(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    for (name, last) in [
        ("plain", ""),
        (
            "interpreter",
            "found contains \"x\" if input.x == 1 with input.x as 0\n",
        ),
    ] {
        let evaluator = evaluator(&policy(last));
        let input = input(evaluator.members("tools/call", 0));
        let evaluate = || {
            let question = PolicyQuestion {
                input: input.clone(),
                decided: 0,
                in_place: true,
                ends: Instant::now().checked_add(Duration::from_millis(500)),
            };
            let decided = evaluator.evaluate("tools/call", question);
            black_box(runtime.block_on(decided).unwrap());
        };
        criterion.bench_function(&format!("policy/{name}/latency"), |bencher| {
            bencher.iter(evaluate);
        });
        criterion.bench_function(&format!("policy/{name}/cpu"), |bencher| {
            bencher.iter_custom(|times| {
                let before = cpu_time();
                (0..times).for_each(|_| evaluate());
                cpu_time().saturating_sub(before)
            });
        });
    }
}

criterion_group!(benches, policies);
criterion_main!(benches);
