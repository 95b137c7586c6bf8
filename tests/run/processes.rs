//! The processes of a run, with their pids on the host.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{SOON, eventually};

/// Pids of all descendants of a process.
pub fn descendants(of: u32) -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = all()
        .into_iter()
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut found = BTreeSet::new();
    let mut next = vec![of];
    while let Some(above) = next.pop() {
        for (pid, _) in parents.iter().filter(|(_, parent)| *parent == above) {
            if found.insert(*pid) {
                next.push(*pid);
            }
        }
    }
    found
}

fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    field(pid, "PPid")?.parse().ok()
}

/// A field of `/proc/PID/status`.
pub fn field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Some(line?.trim().to_owned())
}

/// The command line of a process, with spaces between its words; empty once it has ended.
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Pids of the processes whose link `/proc/PID/LINK` has a target that `to` accepts.
fn leading(link: &str, to: impl Fn(&Path) -> bool) -> Vec<u32> {
    let leads =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/{link}")).is_ok_and(|found| to(&found));
    all().into_iter().filter(leads).collect()
}

/// Pids of the processes that execute a binary.
pub fn of(binary: &Path) -> Vec<u32> {
    leading("exe", |found| found == binary)
}

/// Pids of the processes with this working directory. A sandbox mounts the directory at the same
/// path, so the processes inside are included.
pub fn in_directory(directory: &Path) -> Vec<u32> {
    leading("cwd", |found| {
        found.ends_with(directory.strip_prefix("/").unwrap_or(directory))
    })
}

/// Whether a process runs; a zombie does not.
pub fn runs(pid: u32) -> bool {
    field(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Waits until a launcher has a descendant whose command line ends with `end`, and returns the pid of
/// the descendant.
#[track_caller]
pub fn below(launcher: u32, end: &str) -> u32 {
    let mut found = None;
    eventually(
        &format!("a descendant of {launcher} runs {end}"),
        SOON,
        || {
            let mut below = descendants(launcher).into_iter();
            found = below.find(|pid| command_line(*pid).trim_end().ends_with(end));
            found.is_some()
        },
    );
    found.unwrap()
}

/// Waits for the state directory of a launcher's appliance and returns its path. The launcher holds
/// a lock on it.
#[track_caller]
pub fn state(launcher: u32) -> PathBuf {
    let mut found = None;
    eventually("the launcher has a state directory", SOON, || {
        let entries = fs::read_dir(format!("/proc/{launcher}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        found = links.find(|to| to.parent().is_some_and(is_state));
        found.is_some()
    });
    found.unwrap()
}

/// Whether a directory is a user's directory for the state of runs: `/tmp/unified-proxy-UID`, or
/// `unified-proxy/running` below the user's directory for logs.
fn is_state(directory: &Path) -> bool {
    let name = directory.file_name().unwrap_or_default();
    directory.ends_with("unified-proxy/running")
        || directory.starts_with("/tmp") && name.to_string_lossy().starts_with("unified-proxy-")
}

#[track_caller]
pub fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Waits until none of these processes runs; panics after `within`.
#[track_caller]
pub fn end_within(what: &str, pids: &BTreeSet<u32>, within: Duration) {
    eventually(what, within, || !pids.iter().any(|pid| runs(*pid)));
}

/// The namespaces of these processes, as the links in `/proc/PID/ns` name them.
pub fn namespaces(pids: &BTreeSet<u32>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for pid in pids {
        for entry in fs::read_dir(format!("/proc/{pid}/ns"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if let Ok(to) = fs::read_link(entry.path()) {
                found.insert(to.display().to_string());
            }
        }
    }
    found
}
