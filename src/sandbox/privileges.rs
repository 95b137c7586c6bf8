//! What a sandboxed process gives up for good before the command starts.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// Processes and threads of one sandbox at once.
const MAX_PROCESSES: u64 = 8192;
/// Files that one process of a sandbox may have open.
const MAX_FILES: u64 = 65_536;

/// What PID 1 needs until it gives everything up: to mount, and to empty the bounding set.
const OF_PID1: [CapabilitySet; 2] = [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP];

/// Lets the next program that this process starts keep what PID 1 needs, which a user other than
/// root would lose. All of it is within the sandbox's own user namespace.
pub fn pass_on_to_pid1() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    for capability in OF_PID1 {
        sets.inheritable |= capability;
    }
    set_capabilities(None, sets)?;
    for capability in OF_PID1 {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Drops every capability, for this process and all it starts; no program can gain any.
pub fn drop_capabilities() -> io::Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // This kernel has no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(set_no_new_privs(true)?)
}

/// Raises the limit of open files to what is granted: a connection that is carried takes two.
pub fn raise_open_files() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Limits what one sandbox can take of the machine: no core files, and a bound on processes and
/// open files. A lower limit that is in force stays.
pub fn limit_resources() -> io::Result<()> {
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Nproc, MAX_PROCESSES),
        (Resource::Nofile, MAX_FILES),
    ] {
        let lower = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
        let now = getrlimit(resource);
        let (current, maximum) = (lower(now.current), lower(now.maximum));
        setrlimit(resource, Rlimit { current, maximum })?;
    }
    Ok(())
}
