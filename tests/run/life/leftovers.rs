//! Many concurrent runs, after which nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::fixture::{Person, names};
use crate::processes;
use crate::support::eventually;

/// Number of runs in all.
const RUNS: usize = 100;
/// Number of concurrent runs.
const AT_ONCE: usize = 10;

fn lines(path: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Number of Unix sockets of the host whose paths contain this directory.
fn sockets(below: &Path) -> usize {
    let below = below.display().to_string();
    lines("/proc/net/unix")
        .iter()
        .filter(|line| line.contains(&below))
        .count()
}

#[test]
fn a_hundred_runs_leave_no_process_mount_socket_or_placeholder() {
    let Some(person) = Person::new() else { return };
    let mounts = lines("/proc/self/mountinfo");
    let script = "echo > made-$(cat /proc/sys/kernel/random/uuid); (setsid sleep 1000 &); readlink /proc/self/ns/*; curl -s https://api.example.com/zen >/dev/null; exit 7";
    let mut namespaces = BTreeSet::new();
    let mut all = BTreeSet::new();
    let mut states = BTreeSet::new();
    let mut started = 0;
    // The same command for all runs, so that the configuration is written once.
    let mut command = person.command(&["--quiet"], &["sh", "-c", script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    while started < RUNS {
        let mut children: Vec<_> = (0..AT_ONCE).map(|_| command.spawn().unwrap()).collect();
        started += AT_ONCE;
        for child in &children {
            all.insert(child.id());
            all.extend(processes::descendants(child.id()));
            states.insert(processes::state(child.id()));
        }
        for child in children.drain(..) {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(7), "{output:?}");
            let printed = String::from_utf8(output.stdout).unwrap();
            namespaces.extend(printed.lines().map(str::to_owned));
        }
    }
    // Leaves out the host's namespaces, since runs share its time and cgroup namespaces. The runs
    // may have made more namespaces than `made` lists, since the kernel may reuse the number of an
    // ended one.
    let own = processes::namespaces(&[std::process::id()].into());
    let made: BTreeSet<String> = namespaces.difference(&own).cloned().collect();
    assert!(made.len() >= 5 * AT_ONCE, "{} namespaces", made.len());

    let within = Duration::from_secs(15);
    processes::end_within("every process has ended", &all, within);
    eventually("no process is left", within, || {
        let commands = processes::in_directory(&person.work());
        processes::of(&person.binary()).is_empty() && commands.is_empty()
    });
    eventually("no namespace is left", within, || {
        processes::namespaces(&processes::descendants(1)).is_disjoint(&made)
    });
    assert_eq!(lines("/proc/self/mountinfo"), mounts);
    assert_eq!(sockets(person.base()), 0);
    assert_eq!(names(&person.runtime()), [""; 0]);
    let states: Vec<_> = states.iter().filter(|state| state.exists()).collect();
    assert!(states.is_empty(), "{states:?}");
    let kept = person.home().join(".local/state/unified-proxy");
    assert_eq!(names(&kept.join("placeholders")), ["order"]);
    let left = names(&person.work());
    assert!(
        left.iter().all(|name| name.starts_with("made-")),
        "{left:?}"
    );
    assert_eq!(left.len(), RUNS);
    assert_eq!(person.origin.seen().len(), RUNS);
}
