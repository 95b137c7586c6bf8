//! Signals to a sandbox, ends of a sandbox, and processes and files that a run must not leave.

mod kills;
mod leftovers;
mod signals;

use std::process::{Command, Stdio};

use crate::fixture::Person;
use crate::processes;

#[test]
fn the_appliance_raises_its_soft_limit_on_open_files_to_the_hard_limit() {
    let Some(person) = Person::new() else { return };
    let run = person.command(&[], &["sh", "-c", "echo ready; read -r line"]);
    let variables = run.get_envs();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -S -n 512 && exec \"$@\"", "sh"])
        .arg(run.get_program())
        .args(run.get_args())
        .env_clear()
        .envs(variables.filter_map(|(name, value)| Some((name, value?))))
        .current_dir(person.work())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    signals::ready(&mut child);
    let appliance = processes::below(child.id(), "run-appliance");
    let limits = std::fs::read_to_string(format!("/proc/{appliance}/limits")).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<_> = files.unwrap().split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1]);
    assert_ne!(numbers[0], "512");
    child.kill().unwrap();
    child.wait().unwrap();
}
