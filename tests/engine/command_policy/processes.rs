//! The processes of a command end with it, whatever they do.

use std::fs::File;
use std::io::{PipeReader, Read};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use addons::contract::*;
use serde_json::json;
use tokio::time::timeout;
use unified_proxy::sandbox::{Command, Sandbox, Spec, start_unconfined};

use super::fixture::*;
use crate::children::fixture::{is_running, open_descriptors};

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
async fn every_process_of_a_command_is_killed_when_nobody_waits_for_it() {
    for confine in ["namespaces", "none"] {
        for (policy, processes) in [
            ("while True: pass", 1),
            ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", 1),
            (
                "import os, time\nfor n in range(7): os.fork()\ntime.sleep(100)",
                128,
            ),
            (
                &LEAVES_PROCESSES.replace("print(", "time.sleep(100); print("),
                4,
            ),
        ] {
            let fixture = Fixture::with(policy, &json!({ "confine": confine }));
            fixture.call_until(processes).await;
            fixture.settle().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_takes_too_long_is_killed() {
    for confine in ["namespaces", "none"] {
        let fixture = Fixture::with("while True: pass", &json!({ "confine": confine }));
        let ended = fixture.call_of("agent-1", &json!({}), SHORT).await;
        assert!(matches!(ended, Err(EvaluatorError::TimedOut)), "{ended:?}");
        let line = "proxy_mcp_policy_decisions_total{bundle=\"command\",decision=\"timed_out\"} 1";
        assert!(fixture.metrics().contains(line));
        fixture.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_ends_while_its_command_starts_leaves_no_process() {
    for confine in ["namespaces", "none"] {
        let fixture = Fixture::with(
            "import time\ntime.sleep(100)",
            &json!({ "confine": confine }),
        );
        for milliseconds in (0..40).step_by(2) {
            let limit = Duration::from_millis(milliseconds);
            let ended = timeout(limit, fixture.call(&json!({}))).await;
            assert!(ended.is_err(), "{ended:?}");
        }
        fixture.settle().await;
    }
}

/// Processes that start others until there were 500, each in a session of its own if `SESSIONS` is
/// true, while those before them end. The first process prints more than a decision after 250.
const BOMB: &str = "import os, time
taken, tokens = os.pipe()
os.write(tokens, b'x' * 500)
os.set_blocking(taken, False)
seen, news = os.pipe()
def bomb():
    while True:
        try: os.read(taken, 1)
        except BlockingIOError: break
        if os.fork() == 0:
            if SESSIONS: os.setsid()
            os.write(news, b'x')
    time.sleep(100)
if os.fork() == 0: bomb()
count = 0
while count < 250: count += len(os.read(seen, 250))
os.write(1, b'x' * 65537)
time.sleep(100)";

fn bomb(sessions: bool) -> String {
    BOMB.replace("SESSIONS", if sessions { "True" } else { "False" })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_fork_bomb_is_killed() {
    for confine in ["namespaces", "none"] {
        for sessions in [false, true] {
            let fixture = Fixture::with(&bomb(sessions), &json!({ "confine": confine }));
            let ended = fixture.call(&json!({})).await;
            assert!(matches!(ended, Err(EvaluatorError::Failed(_))), "{ended:?}");
            fixture.settle().await;
        }
    }
}

/// Starts a program in Python with a marker in its command line, without a PID namespace. Its
/// standard output is the returned pipe.
fn start_supervised(text: &str, marker: &str) -> (Sandbox, PipeReader) {
    let sandbox = start_unconfined(Path::new(PROGRAM)).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    let spec = Spec {
        hostname: String::new(),
        files: Vec::new(),
        command: Command {
            program: "python3".into(),
            arguments: ["-c", text, marker].map(Into::into).to_vec(),
            environment: std::env::vars_os().collect(),
            directory: "/".into(),
            if_missing: String::new(),
        },
        terminal: None,
        unix_sockets: false,
        limits: None,
    };
    let streams = [null.as_fd(), writer.as_fd(), null.as_fd()];
    sandbox.begin(None, &spec, streams).unwrap();
    (sandbox, reader)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_pid_namespace_a_supervisor_kills_every_process() {
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().to_str().unwrap();
    for sessions in [false, true] {
        let (sandbox, mut output) = start_supervised(&bomb(sessions), marker);
        let begun = tokio::task::spawn_blocking(move || output.read_exact(&mut [0; 8]));
        begun.await.unwrap().unwrap();
        timeout(LONG, sandbox.gone()).await.unwrap();
        assert!(!is_running(marker));
    }
    for _ in 0..20 {
        let (sandbox, _output) = start_supervised("import time; time.sleep(100)", marker);
        timeout(LONG, sandbox.gone()).await.unwrap();
        assert!(!is_running(marker));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_commands_leave_no_descriptor() {
    let command = json!(["sh", "-c", "echo '{\"decision\": \"allow\"}'"]);
    for confine in ["namespaces", "none"] {
        let fixture = Fixture::with("", &json!({ "confine": confine, "command": command }));
        fixture.call(&json!({})).await.unwrap();
        fixture.settle().await;
        let before = open_descriptors();
        for _ in 0..100 {
            fixture.call(&json!({})).await.unwrap();
        }
        fixture.settle().await;
        assert_eq!(open_descriptors(), before);
    }
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
    let keys = json!({ "command": ["python3", "decide.py", root], "work_dir": root });
    let fixture = Fixture::with("", &keys);
    let decision = fixture.call(&json!({})).await.unwrap();
    assert_eq!(decision.reason.as_deref(), Some("from a file"));
    fixture.settle().await;
    assert!(!is_running(root.to_str().unwrap()));
}
