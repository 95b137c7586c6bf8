//! SIGKILL to each process of unified-proxy in a run, and to a process of the command.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::each_row;

use super::signals::ready;
use crate::fixture::Person;
use crate::processes;
use crate::support::{SOON, eventually};

/// Longest time that a sandbox may take to end.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A shell script that ignores signals and starts processes in other process groups and sessions.
const COMMAND: &str = "trap '' HUP INT TERM USR1 USR2; setsid sh -c 'trap \"\" HUP INT TERM; sleep 1000 & sleep 1001' & \
    sleep 1002 & echo ready; while :; do sleep 0.2; done";

#[test]
fn if_one_of_the_four_processes_of_unified_proxy_is_killed_the_sandbox_ends_within_a_second() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            "launcher",
            "run-appliance",
            "sandbox-forwarder",
            "sandbox-pid1",
        ],
        |killed| {
            let mut child = person.spawn(&[], &["sh", "-c", COMMAND]);
            ready(&mut child);
            let launcher = child.id();
            for name in ["sleep 1000", "sleep 1001", "sleep 1002"] {
                processes::below(launcher, name);
            }
            let inside = processes::descendants(processes::below(launcher, "sandbox-pid1"));
            let all: BTreeSet<u32> = processes::descendants(launcher)
                .into_iter()
                .chain([launcher])
                .collect();
            let state = processes::state(launcher);
            assert!(state.is_dir());
            // Shows that these look-ups find the processes of a run. Other tests assert that the
            // look-ups find no process after the run.
            assert_eq!(processes::of(&person.binary()).len(), 4);
            assert!(processes::in_directory(&person.work()).len() >= 4);
            let victim = match killed {
                "launcher" => launcher,
                part => processes::below(launcher, part),
            };
            processes::send(victim, Signal::KILL);
            let began = Instant::now();
            // The wait may exceed the limit, so that a failure reports the time that the sandbox
            // took to end.
            eventually("every process inside has ended", SOON, || {
                !inside.iter().any(|pid| processes::runs(*pid))
            });
            let took = began.elapsed();
            assert!(took < AT_ONCE, "{took:?}");
            let status = child.wait().unwrap();
            processes::end_within("the run has ended", &all, Duration::from_secs(13));
            if killed != "launcher" {
                assert_eq!(status.code(), Some(70));
                let mut said = String::new();
                std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut said).unwrap();
                assert!(said.contains("the sandbox has ended"), "{said}");
            }
            eventually("the state directory is removed", SOON, || !state.exists());
        },
    );
}

#[test]
fn killing_a_descendant_of_the_command_ends_only_that_process() {
    let Some(person) = Person::new() else { return };
    let script = "sleep 1000 & echo ready; wait $!; echo $?; sleep 0.1; exit 6";
    let mut child = person.spawn(&[], &["sh", "-c", script]);
    ready(&mut child);
    processes::send(processes::below(child.id(), "sleep 1000"), Signal::KILL);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(6), &b"137\n"[..])
    );
}

#[test]
fn a_launcher_that_is_killed_while_it_starts_leaves_no_process() {
    let Some(person) = Person::new() else { return };
    each_row([5, 20, 40, 80, 120, 200, 300], |millis| {
        let mut child = person.spawn(&[], &["sh", "-c", "sleep 1000"]);
        let launcher = child.id();
        std::thread::sleep(Duration::from_millis(millis));
        processes::send(launcher, Signal::KILL);
        child.wait().unwrap();
        eventually("every process has ended", SOON, || {
            let commands = processes::in_directory(&person.work());
            processes::of(&person.binary()).is_empty() && commands.is_empty()
        });
    });
}
