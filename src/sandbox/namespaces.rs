//! The namespaces of a sandbox, entered by the calling process and its children.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};

use super::diagnosis;
use super::handle::Refused;

/// Leaves the namespaces of the machine for new ones: users, network, IPC and host name. Files
/// stay as they are, so that the way out can be reached.
/// The next child is PID 1 of a new PID namespace. The calling process must have one thread.
///
/// Our user and group are the only ones that exist inside, under their own numbers, so that files
/// of the working directory keep their owner.
pub fn enter() -> Result<(), Refused> {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS,
    )
    .map_err(|errno| diagnosis::refused("new namespaces", &io::Error::from(errno)))?;
    let (user, group) = (user.as_raw(), group.as_raw());
    // Without it an unprivileged process may not set its groups' map.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| diagnosis::refused(&format!("writing {file}"), &error))?;
    }
    Ok(())
}

/// Leaves the mounts of the machine for a copy that can be changed.
pub fn enter_mounts() -> Result<(), Refused> {
    unshare(CloneFlags::CLONE_NEWNS)
        .map_err(|errno| diagnosis::refused("new mounts", &io::Error::from(errno)))
}
