//! Privileges that a sandboxed process drops for good before the command starts, and its resource
//! limits.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// The most concurrent processes and threads of one sandbox.
const MAX_PROCESSES: u64 = 8192;
/// The most open files of one process of a sandbox.
const MAX_FILES: u64 = 65_536;

/// The capabilities that PID 1 needs until it drops all: to mount, and to empty the bounding set.
const PID1_CAPABILITIES: [CapabilitySet; 2] = [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP];

/// Makes the capabilities of PID 1 ambient, so that the next program that this process executes
/// keeps them without being root. They are limited to the sandbox's user namespace.
pub fn pass_on_to_pid1() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    for capability in PID1_CAPABILITIES {
        sets.inheritable |= capability;
    }
    set_capabilities(None, sets)?;
    for capability in PID1_CAPABILITIES {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Drops every capability of this process and of the children that it starts later. Sets
/// `no_new_privs`, so that no program that they execute can gain a capability.
pub fn drop_capabilities() -> io::Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel knows no higher capability.
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

/// Raises the limit of open files to the hard limit: a forwarded connection takes two descriptors.
pub fn raise_open_files() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Limits the resources of a sandbox: no core files, and a bound on processes and open files. A
/// lower limit in force is kept.
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
