//! Lists, kills and reaps the child processes of this process.
//!
//! The task that kills a child is the only one that reaps it. A child keeps its process id until it
//! is reaped, so a signal never reaches another process that got the id of an ended child.

use std::fs;
use std::io;
use std::process;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, waitpid,
};

/// Every child of this process, including zombies. A child that appears or ends meanwhile may be
/// missing, so callers that kill children must repeat the call until there are none.
///
/// # Errors
///
/// `/proc` cannot be read.
pub fn list() -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        // Kernels without `CONFIG_PROC_CHILDREN` have no file `children`.
        match fs::read_to_string(thread?.path().join("children")) {
            Ok(ids) => children.extend(ids.split_ascii_whitespace().filter_map(parse)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return list_by_parent(),
            // The thread has ended; its children now belong to another thread.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(children)
}

/// Like [`list`], but finds the children by the parent of every process. This takes longer, and
/// lacks no child because another one ended meanwhile.
///
/// # Errors
///
/// `/proc` cannot be read.
pub fn list_by_parent() -> io::Result<Vec<Pid>> {
    let own = process::id();
    let processes =
        fs::read_dir("/proc")?.filter_map(|entry| parse(entry.ok()?.file_name().to_str()?));
    Ok(processes
        .filter(|id| stat_field(*id, PARENT).is_some_and(|parent| parent == u64::from(own)))
        .collect())
}

/// The time at which a process started, in clock ticks since boot; `None` if it does not exist.
pub fn started(id: Pid) -> Option<u64> {
    stat_field(id, START_TIME)
}

/// Indexes of fields of `/proc/PID/stat`, counted from the field after the name. Index 0 is field 3
/// in proc(5).
const PARENT: usize = 1;
const START_TIME: usize = 19;

fn stat_field(id: Pid, field: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).ok()?;
    // The name is in parentheses and may itself contain parentheses and spaces.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(field)?.parse().ok()
}

fn parse(id: &str) -> Option<Pid> {
    Pid::from_raw(id.parse().ok()?)
}

/// Kills a child that was not reaped yet, and the process group that it leads, if any. A process
/// that the child has started since it was listed is usually in this group.
pub fn kill(child: Pid) {
    // These fail if the child leads no group or belongs to another user.
    let _ = kill_process_group(child, Signal::KILL);
    let _ = kill_process(child, Signal::KILL);
}

/// Reaps a child and returns its status; `None` if it still runs or is not a child.
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
    #[expect(clippy::zombie_processes, reason = "`reap` waits for the child")]
    fn both_lists_have_a_child_and_kill_ends_it() {
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
            assert!(
                Instant::now() < deadline,
                "the child still runs 5 s after SIGKILL"
            );
        };
        assert_eq!(status.terminating_signal(), Some(9));
        assert_eq!(started(id), None);
    }
}
