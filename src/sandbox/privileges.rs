//! Privileges that a sandboxed process drops for good before the command starts, and its resource
//! limits.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, CpuSet, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, sched_getaffinity,
    sched_getcpu, sched_setaffinity, set_capabilities, set_no_new_privs,
};

use super::spec::Limits;

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
        lower(resource, most)?;
    }
    Ok(())
}

/// Applies limits to this process and, since they are inherited, to the command that it starts
/// later.
///
/// The memory limit counts private writable memory (`RLIMIT_DATA`), not addresses (`RLIMIT_AS`):
/// runtimes such as those of Go and JavaScript reserve far more addresses than they use. It must
/// leave this process enough memory to start the command. A file in memory is limited, too, but not
/// private: shared mappings without a file have no limit.
pub fn limit_command(limits: &Limits) -> io::Result<()> {
    lower(Resource::Data, limits.memory)?;
    lower(Resource::Fsize, limits.memory)?;
    let present = sched_getcpu();
    let allowed = sched_getaffinity(None)?;
    let (before, from): (Vec<usize>, Vec<usize>) = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .partition(|cpu| *cpu < present);
    // From the present processor on, which the kernel has chosen as one with little load.
    let mut chosen = CpuSet::new();
    for cpu in from.into_iter().chain(before).take(limits.cpus) {
        chosen.set(cpu);
    }
    Ok(sched_setaffinity(None, &chosen)?)
}

/// Lowers a limit of this process. A lower limit in force is kept.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let least = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    let now = getrlimit(resource);
    let (current, maximum) = (least(now.current), least(now.maximum));
    Ok(setrlimit(resource, Rlimit { current, maximum })?)
}
