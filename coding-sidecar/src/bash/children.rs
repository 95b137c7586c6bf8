//! The child processes of this process: found, reaped, killed.
//!
//! Whoever kills a child here is the only one that reaps it. An unreaped child keeps its id, so a
//! signal never reaches a process that got the id of one that ended.

use std::fs;
use std::io;
use std::process;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, waitpid,
};

/// Every child of this process, zombies included. One that appears or ends meanwhile may be
/// missing: look again until nothing is left.
///
/// # Errors
///
/// `/proc` is not there.
pub fn list() -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        // Kernels without `CONFIG_PROC_CHILDREN` have no such file.
        match fs::read_to_string(thread?.path().join("children")) {
            Ok(ids) => children.extend(ids.split_ascii_whitespace().filter_map(parse)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return list_by_parent(),
            // The thread ended, and its children are those of another by now.
            Err(_) => {}
        }
    }
    Ok(children)
}

/// As [`list`], by a look at every process.
fn list_by_parent() -> io::Result<Vec<Pid>> {
    let own = process::id();
    let processes =
        fs::read_dir("/proc")?.filter_map(|entry| parse(entry.ok()?.file_name().to_str()?));
    Ok(processes
        .filter(|id| stat_field(*id, PARENT).is_some_and(|parent| parent == u64::from(own)))
        .collect())
}

/// The instant at which a process began, in clock ticks since the boot.
pub fn started(id: Pid) -> Option<u64> {
    stat_field(id, START_TIME)
}

/// Fields of `/proc/PID/stat` counted from the one behind the name (proc(5) counts that one as 3).
const PARENT: usize = 1;
const START_TIME: usize = 19;

fn stat_field(id: Pid, field: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).ok()?;
    // The name is in brackets and may hold brackets and blanks itself.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(field)?.parse().ok()
}

fn parse(id: &str) -> Option<Pid> {
    Pid::from_raw(id.parse().ok()?)
}

/// Kills a child that was not reaped yet, and the process group that it leads. What the child
/// started in that group while the signal was sent dies with it.
pub fn kill(child: Pid) {
    // Ended already, leads no group, or belongs to a user whom we may not signal.
    let _ = kill_process_group(child, Signal::KILL);
    let _ = kill_process(child, Signal::KILL);
}

/// Takes the status of a child if it has ended.
pub fn reap(child: Pid) -> Option<WaitStatus> {
    let (_, status) = waitpid(Some(child), WaitOptions::NOHANG).ok()??;
    Some(status)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "`reap` takes its status")]
    fn a_child_is_found_by_either_list_and_dies_by_its_signal() {
        let child = Command::new("/bin/sh")
            .args(["-c", "exec sleep 60"])
            .spawn()
            .unwrap();
        let id = Pid::from_child(&child);
        assert!(list().unwrap().contains(&id));
        assert!(list_by_parent().unwrap().contains(&id));
        assert!(started(id) >= started(rustix::process::getpid()));
        assert!(reap(id).is_none());
        kill(id);
        let deadline = Instant::now() + Duration::from_secs(5);
        let status = loop {
            if let Some(status) = reap(id) {
                break status;
            }
            assert!(Instant::now() < deadline, "the child outlived its signal");
        };
        assert_eq!(status.terminating_signal(), Some(9));
        assert_eq!(started(id), None);
    }
}
