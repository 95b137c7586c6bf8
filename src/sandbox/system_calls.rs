//! The system calls that the command may make, as two seccomp filters.
//!
//! The first filter allows the numbers of this architecture's table up to the newest call that was
//! reviewed. Other calls fail with `ENOSYS`: the calls in [`ABSENT`], the calls of later kernels,
//! and the calls of x32, whose numbers begin far above. Calls of another architecture's table (i386
//! on x86-64) kill the process. The second filter denies calls that a confined program does not
//! need.

use std::io;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// The highest number below the range that all architectures share.
#[cfg(target_arch = "x86_64")]
const LAST_OWN: i64 = libc::SYS_rseq;
#[cfg(target_arch = "aarch64")]
const LAST_OWN: i64 = 294; // kexec_file_load
/// The first of the numbers that mean the same call on all architectures.
const FIRST_COMMON: i64 = libc::SYS_pidfd_send_signal;
/// The newest call that was reviewed.
const LAST_COMMON: i64 = libc::SYS_mseal;

// Numbers that libc does not name on all architectures.
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
const FCHMODAT2: i64 = 452;

/// Calls that fail with `ENOSYS`, so that programs fall back to older calls. `clone3` and `openat2`
/// have their arguments in memory, where no filter sees them; `io_uring` makes system calls that no
/// filter sees.
const ABSENT: [i64; 5] = [
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Calls that are denied with `EPERM`: they change mounts, namespaces, the kernel or the clock, use
/// the kernel's keyrings, or observe the machine. Without capabilities most of these calls would
/// fail in the kernel anyway. Denied here, they cannot reach a bug in the kernel either.
const DENIED: [i64; 48] = [
    // mounts and roots
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    STATMOUNT,
    LISTMOUNT,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // namespaces
    libc::SYS_setns,
    libc::SYS_unshare,
    // keys
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // watching the machine
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_acct,
    libc::SYS_kcmp,
    libc::SYS_process_madvise,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // the kernel
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_nfsservctl,
    libc::SYS_memfd_secret,
    // the clock
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

/// Further denied calls, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const DENIED_HERE: [i64; 5] = [
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_uselib,
    libc::SYS_modify_ldt,
    libc::SYS_kexec_file_load,
];
#[cfg(target_arch = "aarch64")]
const DENIED_HERE: [i64; 1] = [LAST_OWN];

/// Flags of `clone` that make namespaces.
const NEW_NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// The allowed socket families. Of `AF_NETLINK`, only the protocol `NETLINK_ROUTE` is allowed.
/// Other families (vsock, packet, Bluetooth, …) reach beyond the network namespace, or are rarely
/// tested parts of the kernel.
const FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// The socket types for which `socketpair` is denied without `unix_sockets`. A datagram socket can
/// send to any other Unix socket, even if it was made as one of a pair. The sockets of pairs of
/// other types stay connected to each other. The kernel treats `SOCK_RAW` as `SOCK_DGRAM`.
const UNCONNECTED: [i32; 2] = [libc::SOCK_DGRAM, libc::SOCK_RAW];
/// The bits of a socket's type that are not flags (`SOCK_TYPE_MASK` of the kernel).
const SOCKET_TYPE: u64 = 0xf;

/// Requests of `ioctl` that insert input into a terminal, or change its line discipline.
const TERMINAL_INPUT: [u64; 3] = [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSETD];

/// Set-user-ID and set-group-ID bits. If the command set such a bit on a file of a bind mount, the
/// file would run with the rights of its owner or group when it is executed outside the sandbox.
const SET_ID: [u32; 2] = [libc::S_ISUID, libc::S_ISGID];
/// Calls with a mode, and the index of that argument.
const WITH_MODE: [(i64, u8); 5] = [
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (FCHMODAT2, 2),
    (libc::SYS_mknodat, 2),
    (libc::SYS_mkdirat, 2),
];
/// Calls that use their mode only with one of [`CREATE_FLAGS`], and the index of the mode. The
/// flags are the argument before the mode.
const WITH_CREATE_MODE: [(i64, u8); 1] = [(libc::SYS_openat, 3)];
/// Further calls with a mode, which only x86-64 has.
#[cfg(target_arch = "x86_64")]
const WITH_MODE_HERE: [(i64, u8); 3] = [
    (libc::SYS_chmod, 1),
    (libc::SYS_creat, 1),
    (libc::SYS_mknod, 1),
];
#[cfg(target_arch = "x86_64")]
const WITH_CREATE_MODE_HERE: [(i64, u8); 1] = [(libc::SYS_open, 2)];
#[cfg(target_arch = "aarch64")]
const WITH_MODE_HERE: [(i64, u8); 0] = [];
#[cfg(target_arch = "aarch64")]
const WITH_CREATE_MODE_HERE: [(i64, u8); 0] = [];
/// Flags that create a file. `O_TMPFILE` includes the bit of `O_DIRECTORY`, which alone creates no
/// file.
const CREATE_FLAGS: [i32; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Installs the filters for this process and its children. Without `unix_sockets`, they can make
/// Unix sockets only as connected pairs.
pub fn restrict(unix_sockets: bool) -> io::Result<()> {
    for program in [existing()?, denied(unix_sockets)?] {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn existing() -> io::Result<BpfProgram> {
    let numbers = (0..=LAST_OWN).chain(FIRST_COMMON..=LAST_COMMON);
    let rules = numbers.filter(|number| !ABSENT.contains(number));
    let rules = rules.map(|number| (number, Vec::new())).collect();
    compile(
        rules,
        SeccompAction::Errno(libc::ENOSYS as u32),
        SeccompAction::Allow,
    )
}

fn denied(unix_sockets: bool) -> io::Result<BpfProgram> {
    let always = DENIED.into_iter().chain(DENIED_HERE);
    let mut rules: Vec<_> = always.map(|number| (number, Vec::new())).collect();
    let flags = NEW_NAMESPACES.map(|flag| u64::from(flag.unsigned_abs()));
    let flags = flags.map(|flag| rule(&[(0, Width::Qword, Is::MaskedEq(flag), flag)]));
    rules.push((
        libc::SYS_clone,
        flags.into_iter().collect::<io::Result<_>>()?,
    ));
    // The kernel uses only the lower 32 bits of the request.
    let requests = TERMINAL_INPUT.map(|request| rule(&[(1, Width::Dword, Is::Eq, request)]));
    rules.push((
        libc::SYS_ioctl,
        requests.into_iter().collect::<io::Result<_>>()?,
    ));
    rules.extend(with_set_id()?);
    rules.extend(sockets(unix_sockets)?);
    compile(
        rules.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
    )
}

/// Rules that match calls which make other sockets than the allowed ones.
fn sockets(unix_sockets: bool) -> io::Result<[(i64, Vec<SeccompRule>); 2]> {
    let number = |constant: i32| u64::from(constant.unsigned_abs());
    let other_family = FAMILIES.map(|family| (0, Width::Dword, Is::Ne, number(family)));
    let other_netlink = [
        (0, Width::Dword, Is::Eq, number(libc::AF_NETLINK)),
        (2, Width::Dword, Is::Ne, number(libc::NETLINK_ROUTE)),
    ];
    let both = [rule(&other_family)?, rule(&other_netlink)?];
    let (mut single, mut pairs) = (both.to_vec(), both.to_vec());
    if !unix_sockets {
        single.push(rule(&[(0, Width::Dword, Is::Eq, number(libc::AF_UNIX))])?);
        for kind in UNCONNECTED {
            let is_kind = (1, Width::Dword, Is::MaskedEq(SOCKET_TYPE), number(kind));
            pairs.push(rule(&[is_kind])?);
        }
    }
    Ok([(libc::SYS_socket, single), (libc::SYS_socketpair, pairs)])
}

/// Rules that match calls which set a bit of [`SET_ID`] on a file.
fn with_set_id() -> io::Result<Vec<(i64, Vec<SeccompRule>)>> {
    let masked = |argument, mask: u64| (argument, Width::Dword, Is::MaskedEq(mask), mask);
    let bits = SET_ID.map(u64::from);
    let mut rules = Vec::new();
    for (call, mode) in WITH_MODE.into_iter().chain(WITH_MODE_HERE) {
        let each = bits.iter().map(|bit| rule(&[masked(mode, *bit)]));
        rules.push((call, each.collect::<io::Result<_>>()?));
    }
    for (call, mode) in WITH_CREATE_MODE.into_iter().chain(WITH_CREATE_MODE_HERE) {
        let flags = CREATE_FLAGS.map(|flag| u64::from(flag.unsigned_abs()));
        let each = flags.iter().flat_map(|flag| {
            bits.iter()
                .map(|bit| rule(&[masked(mode - 1, *flag), masked(mode, *bit)]))
        });
        rules.push((call, each.collect::<io::Result<_>>()?));
    }
    Ok(rules)
}

fn rule(conditions: &[(u8, Width, Is, u64)]) -> io::Result<SeccompRule> {
    let conditions = conditions.iter().cloned();
    let conditions = conditions
        .map(|(argument, width, is, value)| SeccompCondition::new(argument, width, is, value))
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    SeccompRule::new(conditions).map_err(io::Error::other)
}

fn compile(
    rules: std::collections::BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> io::Result<BpfProgram> {
    let machine: TargetArch = std::env::consts::ARCH
        .try_into()
        .map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, otherwise, matched, machine);
    filter.and_then(TryInto::try_into).map_err(io::Error::other)
}
