//! Signals to the launcher, and orphans of the command.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use testkit::each_row;

use crate::fixture::Person;
use crate::processes;
use crate::support::{SOON, eventually};

/// Waits until a command has printed `ready`.
#[track_caller]
pub fn ready(child: &mut Child) {
    let mut ready = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    assert_eq!(&ready, b"ready\n");
}

#[test]
fn signals_pass_through_to_the_command() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            ("TERM", Signal::TERM),
            ("INT", Signal::INT),
            ("HUP", Signal::HUP),
            ("QUIT", Signal::QUIT),
            ("USR1", Signal::USR1),
            ("USR2", Signal::USR2),
        ],
        |(name, signal)| {
            let script = format!(
                "trap 'echo caught; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
            );
            let mut child = person.spawn(&[], &["sh", "-c", &script]);
            ready(&mut child);
            processes::send(child.id(), signal);
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(5), "{output:?}");
            assert_eq!(output.stdout, b"caught\n");
        },
    );
}

#[test]
fn a_signal_that_ends_the_command_gives_exit_code_128_plus_its_number() {
    let Some(person) = Person::new() else { return };
    each_row(
        [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::USR1, 138)],
        |(signal, code)| {
            let mut child = person.spawn(&[], &["sh", "-c", "echo ready; exec sleep 1000"]);
            ready(&mut child);
            processes::below(child.id(), "sleep 1000");
            processes::send(child.id(), signal);
            assert_eq!(child.wait().unwrap().code(), Some(code));
        },
    );
}

#[test]
fn a_signal_that_the_caller_ignores_stays_ignored() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            ("HUP", Signal::HUP),
            ("INT", Signal::INT),
            ("USR1", Signal::USR1),
        ],
        |(name, signal)| {
            let run = person.command(&[], &["sh", "-c", "echo ready; read -r line; exit 4"]);
            let mut outer = Command::new("sh");
            outer.args(["-c", &format!("trap '' {name}; exec \"$@\""), "sh"]);
            outer
                .arg(run.get_program())
                .args(run.get_args())
                .env_clear();
            outer.envs(
                run.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
            let mut child = outer
                .current_dir(person.work())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            ready(&mut child);
            processes::send(child.id(), signal);
            processes::send(processes::below(child.id(), "exit 4"), signal);
            std::thread::sleep(Duration::from_millis(200));
            drop(child.stdin.take());
            assert_eq!(child.wait().unwrap().code(), Some(4));
        },
    );
}

#[test]
fn stopping_and_continuing_the_launcher_stops_and_continues_its_command() {
    let Some(person) = Person::new() else { return };
    let mut child = person.spawn(&[], &["sh", "-c", "echo ready; exec sleep 1000"]);
    ready(&mut child);
    let (launcher, command) = (child.id(), processes::below(child.id(), "sleep 1000"));
    let is_stopped =
        |pid| processes::field(pid, "State").is_some_and(|state| state.starts_with('T'));
    processes::send(launcher, Signal::TSTP);
    eventually("the launcher and the command are stopped", SOON, || {
        is_stopped(launcher) && is_stopped(command)
    });
    processes::send(launcher, Signal::CONT);
    eventually("the launcher and the command continue", SOON, || {
        !is_stopped(launcher) && !is_stopped(command)
    });
    processes::send(launcher, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn orphans_are_reaped_and_end_with_the_command() {
    let Some(person) = Person::new() else { return };
    let script = "i=0; while [ $i -lt 50 ]; do (sh -c 'exit 3' &) ; i=$((i+1)); done; (setsid sleep 1000 &); sleep 0.3;\
        grep -l 'State:.Z' /proc/[0-9]*/status | wc -l; echo ready; read -r line";
    let mut child = person.spawn(&[], &["sh", "-c", script]);
    let mut counted = [0; 2];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut counted)
        .unwrap();
    assert_eq!(&counted, b"0\n", "zombies");
    ready(&mut child);
    let all = processes::descendants(child.id());
    drop(child.stdin.take());
    child.wait().unwrap();
    processes::end_within("the background process ends", &all, SOON);
}
