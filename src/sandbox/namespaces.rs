//! Namespaces of a sandbox, entered by the calling process and its children.

use std::fs;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Gid, Uid};

use super::diagnosis;
use super::handle::Refused;

/// Enters new user, network, IPC and UTS namespaces; the next child is PID 1 of a new PID
/// namespace. The mount namespace stays the machine's, so that the Unix listener can be reached.
/// The calling process must have one thread.
///
/// Only the user and group of this process are mapped, to the same numbers, so that files of the
/// working directory keep their owner.
pub fn enter() -> Result<(), Refused> {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS,
    )
    .map_err(diagnosis::refused("entering new namespaces"))?;
    map(user, group)
}

/// Makes the next child PID 1 of a new PID namespace. Enters a user namespace, too, if this process
/// has no privilege to make the other. Returns whether this machine permits it; if not, nothing has
/// changed. The calling process must have one thread, and can start no other afterwards.
pub fn enter_pids() -> Result<bool, Refused> {
    if unshare(CloneFlags::CLONE_NEWPID).is_ok() {
        return Ok(true);
    }
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    if unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID).is_err() {
        return Ok(false);
    }
    map(user, group)?;
    Ok(true)
}

/// Maps this process's user and group in its new user namespace to the same numbers.
fn map(user: Uid, group: Gid) -> Result<(), Refused> {
    let (user, group) = (user.as_raw(), group.as_raw());
    // The kernel requires `setgroups` to be denied before an unprivileged process writes its
    // gid_map.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(diagnosis::refused(&format!("writing {file}")))?;
    }
    Ok(())
}

/// Enters a new mount namespace, a copy of the machine's.
pub fn enter_mounts() -> Result<(), Refused> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(diagnosis::refused("entering a mount namespace"))
}
