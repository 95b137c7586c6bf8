//! Opening names so that the result is below a folder, whatever is swapped meanwhile.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// How often `openat2` is called again after `EAGAIN`, its answer when a folder was renamed or mounted
/// during the call. One retry nearly always succeeds; the bound ends a race that someone keeps up.
const RETRIES_MAX: usize = 256;

/// Whether symbolic links in a path are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Those that stay below the folder.
    Follow,
    /// None; `ELOOP` instead.
    Refuse,
}

/// The rule by which names become descriptors.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resolver {
    /// Only what is below the folder that a name is relative to.
    Beneath,
    /// Everything: `SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT=true`.
    Anywhere,
}

impl Resolver {
    /// [`Resolver::Beneath`], once the kernel has shown that it knows `openat2`.
    pub(super) fn beneath(root: BorrowedFd<'_>) -> Result<Self, io::Error> {
        match Self::Beneath.open(root, b".", OFlags::PATH, Links::Follow) {
            Ok(_) => Ok(Self::Beneath),
            // Seccomp profiles that do not know the call answer EPERM.
            Err(Errno::NOSYS | Errno::PERM) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel (Linux 5.6 is needed) or its seccomp profile does not offer openat2, \
                 without which paths cannot be confined to the workspace root; \
                 SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT=true runs without confinement",
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens `name` relative to `at`. Never blocks on a FIFO and never acquires a terminal.
    pub(super) fn open(
        self,
        at: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        links: Links,
    ) -> Result<OwnedFd, Errno> {
        let flags = if flags.contains(OFlags::PATH) {
            flags | OFlags::CLOEXEC
        } else {
            flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
        };
        match self {
            Self::Beneath => open_beneath(at, name, flags, links),
            Self::Anywhere if links == Links::Refuse => {
                openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty())
            }
            Self::Anywhere => openat(at, name, flags, Mode::empty()),
        }
    }
}

fn open_beneath(
    at: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Refuse {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    for _ in 0..RETRIES_MAX {
        match openat2(at, name, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}
