//! Creates the sidecar's Unix socket file with the configured mode, replaces a stale one, and
//! removes it at shutdown.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, Stat, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 256;
/// How long a start waits for the lock of the folder. A sidecar holds it only for milliseconds,
/// while it starts.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two attempts to lock the folder.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The socket's file. Dropping this removes the file, unless it was replaced.
pub struct SocketFile {
    path: PathBuf,
    /// Refers to the file. As long as it is open, no other file can get the file's inode number, not
    /// even after the file was removed.
    file: OwnedFd,
}

impl SocketFile {
    /// Whether the file is still there and was not replaced.
    pub fn is_ours(&self) -> bool {
        let id = |stat: Stat| (stat.st_dev, stat.st_ino);
        match (rustix::fs::lstat(&self.path), rustix::fs::fstat(&self.file)) {
            (Ok(now), Ok(ours)) => id(now) == id(ours),
            _ => false,
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_ours() {
            // Fails if the file is already gone or its folder became read-only. The next start
            // replaces a file that is left.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, on a socket whose file has `mode`. No process can connect before the file has
/// that mode. Blocks for up to `lock_timeout`.
///
/// # Errors
///
/// A sentence with the reason: for example, the folder is missing, a server listens there, or the
/// file is not a socket.
pub fn listen_at(
    path: &Path,
    mode: u32,
    lock_timeout: Duration,
) -> Result<(UnixListener, SocketFile), String> {
    let shown = path.display();
    // Without the lock, this sidecar could remove a socket that another sidecar is just creating:
    // until `listen`, that socket looks stale.
    let _folder = lock_folder(path, lock_timeout)?;
    remove_stale(path)?;
    let mode = Mode::from_bits_truncate(mode);
    let address = SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => {
            format!("SOCKET_PATH {shown} is longer than the 107 bytes of a Unix socket's path")
        }
        other => format!("SOCKET_PATH {shown}: {other}"),
    })?;
    let failed = |step: &str, error: Errno| format!("cannot {step} {shown}: {error}");
    let socket = unix_socket().map_err(|error| failed("open a socket for", error))?;
    // The file gets this mode, without the bits of the umask.
    rustix::fs::fchmod(&socket, mode).map_err(|error| failed("set the mode of", error))?;
    bind(&socket, &address).map_err(|error| failed("make the socket", error))?;
    let reference = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = SocketFile {
        file: rustix::fs::open(path, reference, Mode::empty())
            .map_err(|error| failed("find", error))?,
        path: path.to_owned(),
    };
    // With the bits of the umask, and whatever a default ACL of the folder says. Until `listen`,
    // connections are refused independently of the mode.
    rustix::fs::chmod(path, mode).map_err(|error| failed("set the mode of", error))?;
    listen(&socket, BACKLOG).map_err(|error| failed("listen at", error))?;
    Ok((UnixListener::from(socket), file))
}

/// Locks the folder of `path` against other sidecars that start. Dropping the returned file unlocks
/// it.
fn lock_folder(path: &Path, timeout: Duration) -> Result<File, String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let shown = folder.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => format!(
            "the socket's folder {shown} does not exist: make it, or mount there the folder that \
             the proxy's container shares"
        ),
        other => format!("cannot open the socket's folder {shown}: {other}"),
    })?;
    let deadline = Instant::now() + timeout;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(File::from(folder)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(LOCK_RETRY),
            Err(Errno::WOULDBLOCK) => {
                return Err(format!(
                    "another process holds a lock on the folder {shown}"
                ));
            }
            Err(error) => return Err(format!("cannot lock the folder {shown}: {error}")),
        }
    }
}

/// Removes a stale socket at `path`. Fails if a server listens on the socket, if the file is not a
/// socket, or if this user may not connect to it.
fn remove_stale(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let kind = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("cannot inspect {shown}: {error}")),
    };
    if !kind.is_socket() {
        return Err(format!(
            "{shown} exists and is not a socket: remove it, or set SOCKET_PATH to another path"
        ));
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path)
            .map_err(|error| format!("cannot remove the stale socket {shown}: {error}")),
        Err(Errno::ACCESS | Errno::PERM) => Err(format!(
            "{shown} is a socket to which this user may not connect: remove it, or set SOCKET_PATH \
             to another path"
        )),
        _ => Err(format!(
            "another server listens at {shown}: stop it, or set SOCKET_PATH to another path"
        )),
    }
}

/// Connects without waiting. Fails with `ECONNREFUSED` only if no server listens; if a server's
/// backlog is full, fails with `EAGAIN`.
fn probe(path: &Path) -> Result<(), Errno> {
    connect(unix_socket()?, &SocketAddrUnix::new(path)?)
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
