//! The Unix socket's file: made with its mode, in place of a stale one, and removed at the end.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::umask;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 256;
/// How long another start may hold the folder. It takes milliseconds.
const FOLDER_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks at the folder's lock.
const FOLDER_POLL: Duration = Duration::from_millis(20);

/// The socket's file. Dropping it removes the file, if it is still the one that was made.
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let made = std::fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            device: made.dev(),
            inode: made.ino(),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|now| now.dev() == self.device && now.ino() == self.inode);
        if ours {
            // The file is gone, or its folder is read-only by now: the next start replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path` with a file of `mode`. Nobody can connect before the file has that mode.
///
/// Must run while the process has one thread: it changes the umask for a moment.
///
/// # Errors
///
/// A sentence: the folder is missing, a server listens there, the path is another kind of file.
pub fn listen_at(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), String> {
    let shown = path.display();
    // Two sidecars that start at once would each remove the other's socket as stale.
    let _folder = lock_folder(path)?;
    remove_stale(path)?;
    let mode = Mode::from_bits_truncate(mode);
    let address = SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => {
            format!("SOCKET_PATH {shown} is longer than the 107 bytes of a Unix socket's path")
        }
        other => format!("SOCKET_PATH {shown}: {other}"),
    })?;
    let failed = |step: &str, error: Errno| format!("cannot {step} {shown}: {error}");
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|error| failed("open a socket for", error))?;
    let before = umask(Mode::from_bits_truncate(0o777) - mode);
    let bound = bind(&socket, &address);
    umask(before);
    bound.map_err(|error| failed("make the socket", error))?;
    let file = SocketFile::new(path).map_err(|error| format!("cannot find {shown}: {error}"))?;
    // A default ACL of the folder takes the place of the umask. Until `listen`, a connection is
    // refused whatever the mode.
    rustix::fs::chmod(path, mode).map_err(|error| failed("set the mode of", error))?;
    listen(&socket, BACKLOG).map_err(|error| failed("listen at", error))?;
    Ok((UnixListener::from(socket), file))
}

/// Locks the folder of `path` against other sidecars that start; the lock ends with the file.
fn lock_folder(path: &Path) -> Result<File, String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let shown = folder.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => format!(
            "the folder of the socket, {shown}, does not exist: make it, or mount the folder \
             that is shared with the appliance there"
        ),
        other => format!("cannot open the folder of the socket, {shown}: {other}"),
    })?;
    let deadline = Instant::now() + FOLDER_PATIENCE;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(File::from(folder)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(FOLDER_POLL),
            Err(Errno::WOULDBLOCK) => {
                return Err(format!(
                    "another process holds a lock on the folder {shown}"
                ));
            }
            Err(error) => return Err(format!("cannot lock the folder {shown}: {error}")),
        }
    }
}

/// Removes a socket on which no server listens.
fn remove_stale(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let kind = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("cannot look at {shown}: {error}")),
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
            "a socket of another user lies at {shown}: remove it, or set SOCKET_PATH to another path"
        )),
        _ => Err(format!(
            "a server listens at {shown}: end it, or set SOCKET_PATH to another path"
        )),
    }
}

/// Connects without waiting: a server whose backlog is full is alive too.
fn probe(path: &Path) -> Result<(), Errno> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}
