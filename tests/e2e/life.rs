//! Ends of sandboxes: first all processes of a sandbox end, then it is unregistered.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, Sandbox, runs};
use crate::summary::can_run;
use crate::support::{SOON, eventually};

/// Ends a sandbox, given its name and its properties.
type End<'a> = &'a dyn Fn(&str, &Sandbox);

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

/// Pid of the supervisor, which is the first part of the token.
fn supervisor(fixture: &Fixture, name: &str) -> u32 {
    let token = fixture.read(name, "token");
    token.split('.').next().unwrap().parse().unwrap()
}

fn janitor(fixture: &Fixture, name: &str) -> u32 {
    let token = fixture.read(name, "token").trim().to_owned();
    let wanted = format!("_janitor\0{name}\0{token}\0");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).ends_with(&wanted)
    };
    pids.find(is_it).unwrap()
}

/// Waits until a sandbox is unregistered, and asserts that the sandbox's first process, link,
/// firewall rules and routes no longer exist. Then waits up to 2 s for the removal of its state.
fn assert_gone(fixture: &Fixture, name: &str, sandbox: &Sandbox) {
    eventually(&format!("{name} is unregistered"), SOON, || {
        fixture.registration(name).is_none()
    });
    assert!(
        !runs(sandbox.init),
        "the sandbox was unregistered while its first process ran"
    );
    let left = fixture.host.sh("nft list tables; ip -brief link; ip route");
    assert!(!left.contains(&sandbox.device), "{left}");
    let state = fixture.state_of(name);
    eventually(
        "the sandbox's state is removed",
        Duration::from_secs(2),
        || !state.exists(),
    );
}

#[test]
fn a_sandbox_is_unregistered_only_after_its_processes_have_ended() {
    if !can_run("a_sandbox_is_unregistered_only_after_its_processes_have_ended") {
        return;
    }
    let fixture = Fixture::start();
    let ends: [(&str, End<'_>); 4] = [
        ("down", &|name, _| {
            fixture.sandbox(&["down", name]).ok();
        }),
        ("its-first-process", &|_, sandbox| kill(sandbox.init)),
        ("its-supervisor", &|name, _| {
            kill(supervisor(&fixture, name))
        }),
        ("its-janitor", &|name, _| kill(janitor(&fixture, name))),
    ];
    for (name, end) in ends {
        let sandbox = fixture.up(name, &[]);
        // A daemon in its own session.
        fixture
            .exec(name, "setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
            .ok();
        let sleeping = format!(
            "pgrep --ns {} --nslist pid --count sleep || true",
            sandbox.init
        );
        eventually("the sandbox's processes sleep", SOON, || {
            fixture.host.sh(&sleeping).trim() == "2"
        });
        end(name, &sandbox);
        assert_gone(&fixture, name, &sandbox);
    }
}

#[test]
fn a_killed_script_ends_its_sandbox() {
    if !can_run("a_killed_script_ends_its_sandbox") {
        return;
    }
    let fixture = Fixture::start();
    for signal in [Signal::KILL, Signal::TERM, Signal::HUP] {
        let mut script = fixture.script(&["up", "a", "--while", "sleep", "1000"]);
        let mut script = fixture.host.run(|| script.spawn().unwrap());
        eventually("the command runs", SOON, || {
            let init = fixture.read("a", "init");
            let init = init.split(' ').next().unwrap_or_default();
            let sleeping = format!("pgrep --ns {init} --nslist pid --full 'sleep 1000' || true");
            !init.is_empty() && !fixture.host.sh(&sleeping).is_empty()
        });
        let sandbox = fixture.find("a");
        assert!(fixture.registration("a").is_some());
        kill_process(Pid::from_child(&script), signal).unwrap();
        assert_gone(&fixture, "a", &sandbox);
        script.wait().unwrap();
    }
}

#[test]
fn up_while_ends_the_sandbox_with_the_command_and_exits_with_its_code() {
    if !can_run("up_while_ends_the_sandbox_with_the_command_and_exits_with_its_code") {
        return;
    }
    let fixture = Fixture::start();
    let script = "curl -s -o /dev/null https://api.example.com/echo && exit 7";
    let ran = fixture.sandbox(&["up", "a", "--while", "bash", "-c", script]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(fixture.registration("a").is_none());
    assert_eq!(fixture.origin.seen().len(), 1);
}

#[test]
fn a_failed_sandbox_command_gives_the_reason_and_registers_nothing() {
    if !can_run("a_failed_sandbox_command_gives_the_reason_and_registers_nothing") {
        return;
    }
    let fixture = Fixture::start();
    let a = fixture.up("a", &[]);
    let address = a.address.to_string();
    for (arguments, code, why) in [
        (&["up", "a"][..], 1, "a is up already"),
        (&["up", "b", "--address", &address], 1, "is in use"),
        (&["up", "b", "--mode", "root"], 64, "--mode is user or bot"),
        (&["up", "b", "--user", "0:0"], 64, "not root"),
        (&["up", "b", "--backend", "docker"], 64, "needs --image"),
        (
            &["up", "b", "--backend", "docker", "--image", "i"],
            64,
            "too short for docker",
        ),
        (
            &["up", "b", "--repo", "no repository"],
            70,
            "the registration failed",
        ),
        (&["up", "b", "--image", "i"], 64, "--image is for"),
        (&["exec", "b", "--", "true"], 1, "no sandbox b is up"),
        (&["down", "b"], 1, "no sandbox b is up"),
    ] {
        let ran = fixture.sandbox(arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(why), "{arguments:?}: {ran:?}");
    }
    let listed = fixture
        .proxy
        .admin("GET", "/internal/containers", None)
        .json();
    assert_eq!(listed["containers"].as_array().unwrap().len(), 1);
    assert_eq!(
        fixture.status("a", "https://api.example.com/echo"),
        "200/200"
    );
}
