//! The processes of a command end with it, whatever they do.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use addons::contract::*;
use serde_json::json;

use super::fixture::*;
use crate::children::fixture::{eventually, is_running};

/// Time limit of evaluations that do not end before it.
const SHORT: Duration = Duration::from_secs(1);

/// Prints a decision and leaves processes that hold the output open, ignore signals, and have
/// process groups and sessions of their own, at several levels.
const LEAVES_PROCESSES: &str = "import os, signal, time
for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(n, signal.SIG_IGN)
def left(depth):
    if os.fork() == 0:
        os.setsid()
        if depth: left(depth - 1)
        time.sleep(0 if depth == 2 else 100)
        os._exit(0)
left(3)
print('{\"decision\": \"allow\"}')";

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_a_command_leaves_end_with_it_and_delay_no_decision() {
    for confine in ["namespaces", "none"] {
        let fixture = Fixture::with(LEAVES_PROCESSES, &json!({ "confine": confine }));
        for _ in 0..5 {
            let begun = Instant::now();
            let decision = fixture.call(&json!({})).await.unwrap();
            assert_eq!(decision.effect, Effect::Allow, "{confine}");
            // The processes would hold the output open for 100 s.
            assert!(begun.elapsed() < LONG / 2, "{confine}");
        }
        fixture.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_time_limit_every_process_of_a_command_is_killed() {
    for confine in ["namespaces", "none"] {
        for policy in [
            "while True: pass",
            "import time\ntime.sleep(100)",
            "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
            "import os, time\nfor n in range(7): os.fork()\ntime.sleep(100)",
            &LEAVES_PROCESSES.replace("print(", "time.sleep(100); print("),
        ] {
            let fixture = Fixture::with(policy, &json!({ "confine": confine }));
            let ended = fixture.call_of("agent-1", &json!({}), SHORT).await;
            assert!(
                matches!(ended, Err(EvaluatorError::TimedOut)),
                "{policy}: {ended:?}"
            );
            let line =
                "proxy_mcp_policy_decisions_total{bundle=\"command\",decision=\"timed_out\"} 1";
            assert!(fixture.metrics().contains(line), "{policy}");
            fixture.settle().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_nobody_waits_for_is_killed() {
    let fixture = Fixture::with(
        "import time\nopen('DIR/began', 'w')\ntime.sleep(100)",
        &json!({ "confine": "none" }),
    );
    let arguments = json!({});
    let mut calling = Box::pin(fixture.call(&arguments));
    let began = eventually(LONG, || fixture.files("began") == 1);
    tokio::select! {
        decided = &mut calling => panic!("{decided:?}"),
        began = began => assert!(began),
    }
    drop(calling);
    fixture.settle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_confined_and_has_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let policy = format!(
        "import json, os, socket
def fails(act):
    try: act()
    except OSError: return True
    return False
tried = [
    fails(lambda: socket.create_connection(('127.0.0.1', {port}), 1)),
    fails(lambda: socket.create_connection(('127.0.0.1', 3128), 1)),
    fails(lambda: os.listdir('DIR')),
    fails(lambda: open('/etc/new', 'w')),
]
print(json.dumps({{'decision': 'allow', 'reason': json.dumps(tried)}}))"
    );
    let fixture = Fixture::new(&policy);
    let decision = fixture.call(&json!({})).await.unwrap();
    assert_eq!(decision.reason.as_deref(), Some("[true, true, true, true]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_be_in_a_directory_that_the_sandbox_shows() {
    let directory = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(directory.path()).unwrap();
    let text = "print('{\"decision\": \"ask\", \"reason\": \"from a file\"}')";
    std::fs::write(root.join("decide.py"), text).unwrap();
    let keys = json!({ "command": ["python3", "decide.py"], "work_dir": root });
    let fixture = Fixture::with("", &keys);
    let decision = fixture.call(&json!({})).await.unwrap();
    assert_eq!(decision.reason.as_deref(), Some("from a file"));
    assert!(!is_running("decide.py"));
}
