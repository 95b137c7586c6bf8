//! Properties of child processes, checked with generated cases.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use addons::mcp::Confine;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tokio::runtime::Runtime as Tokio;
use unified_proxy::mcp::*;

use super::fixture::*;

/// Runs 100 generated cases of a property with one Tokio runtime and one spawner.
fn each_case<S: Strategy>(
    strategy: &S,
    property: impl Fn(&Tokio, &Spawner, S::Value) -> Result<(), TestCaseError>,
) {
    let tokio = Tokio::new().unwrap();
    let spawner = tokio.block_on(async { Spawner::start(PROGRAM.into()).unwrap() });
    let mut config = Config::with_cases(100);
    config.max_shrink_iters = 20;
    let mut runner = TestRunner::new(config);
    let checked = runner.run(strategy, |case| property(&tokio, &spawner, case));
    checked.unwrap();
}

fn machine() -> Arc<Machine> {
    Arc::new(Machine::new(std::env::temp_dir(), Vec::new()))
}

fn unconfined(command: &[&str]) -> ProcessConfig {
    ProcessConfig {
        server: "t".to_owned(),
        program: Program {
            command: command.iter().map(|part| (*part).to_owned()).collect(),
            env: Vec::new(),
            work_dir: None,
            read: Vec::new(),
            write: Vec::new(),
            confine: Confine::None,
            unix_sockets: false,
            knows_proxy: true,
            limits: None,
        },
        secrets: Vec::new(),
        egress: None,
        longest_line: 1 << 20,
        memory: Memory::of_one(),
    }
}

// Feature: unified-sidecar, Property 5: a tool runs on its configured runtime, by default locally.
#[test]
fn property_5_a_server_runs_on_its_configured_runtime() {
    let kinds = (
        prop::option::of(prop::sample::select(vec!["local", "e2b"])),
        "[a-z]{1,12}",
        prop::option::of("[a-z0-9-]{1,20}"),
        prop::sample::select(vec!["mcpServers", "tools"]),
    );
    each_case(
        &kinds,
        |tokio, spawner, (runtime, program, template, key)| {
            let mut server = json!({ "name": "t", "command": [program], "env": [] });
            for (member, value) in [("type", runtime), ("template", template.as_deref())] {
                if let Some(value) = value {
                    server["runtime"][member] = value.into();
                }
            }
            let file = match key {
                "tools" => json!({ key: [server] }),
                _ => {
                    server.as_object_mut().unwrap().remove("name");
                    json!({ key: { "t": server } })
                }
            };
            let servers = servers_of(&file, &|_| None);
            let manager = process_manager(&servers["t"].kind, spawner, &machine()).unwrap();
            if runtime != Some("e2b") {
                prop_assert_eq!(manager.runtime(), Runtime::Local);
                return Ok(());
            }
            prop_assert_eq!(manager.runtime(), Runtime::E2b);
            let refused = tokio
                .block_on(manager.start(unconfined(&["true"])))
                .unwrap_err();
            prop_assert_eq!(refused.into_denial("t").code().status(), 501);
            Ok(())
        },
    );
}

// Feature: unified-sidecar, Property 6: every process manager keeps the interface's contract, and
// failed writes are errors.
#[test]
fn property_6_managers_keep_the_contract_of_the_interface() {
    let cases = (any::<bool>(), prop::collection::vec("[ -~]{0,60}", 0..5));
    each_case(&cases, |tokio, spawner, (is_e2b, lines)| {
        tokio.block_on(async {
            let manager: Arc<dyn ProcessManager> = match is_e2b {
                true => Arc::new(E2b),
                false => Arc::new(Local::new(spawner, &machine())),
            };
            prop_assert!(!manager.is_running() && manager.exit_code().is_none());
            prop_assert!(manager.write(b"early\n").await.is_err());
            let started = manager.start(unconfined(&["cat"])).await;
            prop_assert_eq!(started.is_err(), is_e2b);
            prop_assert_eq!(manager.is_running(), !is_e2b);
            for line in &lines {
                let written = manager.write(format!("{line}\n").as_bytes()).await;
                prop_assert_eq!(written.is_err(), is_e2b);
            }
            let mut echoed = Vec::new();
            let mut take = |line: &[u8]| {
                echoed.push(String::from_utf8_lossy(line).into_owned());
                match echoed.len() == lines.len() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(Duration::ZERO),
                }
            };
            if !lines.is_empty() {
                prop_assert_eq!(manager.read_loop(&mut take).await.is_err(), is_e2b);
            }
            manager.stop(Duration::from_secs(2)).await;
            prop_assert!(!manager.is_running());
            prop_assert!(manager.write(b"late\n").await.is_err());
            if !is_e2b {
                prop_assert_eq!(&echoed, &lines);
                prop_assert_eq!(manager.exit_code(), Some(0));
            }
            Ok(())
        })
    });
}

// Feature: unified-sidecar, Property 7: an unexpected exit is reported with its code, and other
// processes keep running.
#[test]
fn property_7_an_exit_is_reported_with_its_code_and_other_processes_keep_running() {
    let other = std::sync::OnceLock::<Arc<Local>>::new();
    let cases = (0_u8..=255, any::<bool>());
    each_case(&cases, |tokio, spawner, (code, by_signal)| {
        tokio.block_on(async {
            if other.get().is_none() {
                let manager = Local::new(spawner, &machine());
                manager.start(unconfined(&["cat"])).await.unwrap();
                let _ = other.set(Arc::new(manager));
            }
            let script = match by_signal {
                true => "read -r line; kill -KILL $$".to_owned(),
                false => format!("read -r line; exit {code}"),
            };
            let manager = Local::new(spawner, &machine());
            let started = manager.start(unconfined(&["sh", "-c", &script])).await;
            prop_assert!(started.is_ok(), "{started:?}");
            manager.write(b"go\n").await.unwrap();
            let mut take = |_: &[u8]| ControlFlow::Continue(Duration::ZERO);
            let limit = Duration::from_secs(10);
            let read = tokio::time::timeout(limit, manager.read_loop(&mut take)).await;
            prop_assert!(read.is_ok(), "the output did not end with the process");
            prop_assert!(tokio::time::timeout(limit, manager.ended()).await.is_ok());
            let expected = if by_signal { 137 } else { i32::from(code) };
            prop_assert_eq!(manager.exit_code(), Some(expected));
            prop_assert!(!manager.is_running());
            let other = other.get().unwrap();
            prop_assert!(other.is_running());
            prop_assert!(other.write(b"alive\n").await.is_ok());
            Ok(())
        })
    });
}

// Feature: unified-sidecar, Property 15: a shutdown ends every process within the time limit and
// leaves no orphan. Processes get SIGKILL at the limit; the test allows them 10 s more to end.
#[test]
fn property_15_a_stop_ends_every_process_within_the_time_limit() {
    let behaviour = prop::sample::select(vec![
        "cat",
        "trap '' TERM HUP; while :; do sleep 7; done",
        "sleep 7 & sleep 8",
        "setsid sleep 9 & exec cat",
    ]);
    let cases = (prop::collection::vec(behaviour, 1..4), 0_u64..150);
    each_case(&cases, |tokio, spawner, (scripts, millis)| {
        tokio.block_on(async {
            let limit = Duration::from_millis(millis);
            let mut running = Vec::new();
            for script in scripts {
                let manager = Local::new(spawner, &machine());
                let started = manager.start(unconfined(&["sh", "-c", script])).await;
                prop_assert!(started.is_ok(), "{started:?}");
                running.push(manager);
            }
            let stopping = running.iter().map(|manager| manager.stop(limit));
            let stopping = futures_util::future::join_all(stopping);
            let within = limit + Duration::from_secs(10);
            prop_assert!(tokio::time::timeout(within, stopping).await.is_ok());
            prop_assert!(running.iter().all(|manager| !manager.is_running()));
            let left = descendants(std::process::id());
            prop_assert!(left.is_empty(), "{left:?}");
            Ok(())
        })
    });
}
