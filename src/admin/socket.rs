//! The admin socket: binds it if no other server listens there, and admits permitted users only.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

/// Opens a socket with a file mode, and replaces the socket of a dead server. If a live server
/// listens at the path, the error is `AddrInUse`; if the file is not a socket, `AlreadyExists`.
///
/// Binds the socket in a private directory, sets its mode, and then moves it to `path`, so that no
/// user can connect before the mode is in force.
pub fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    refuse_living(path)?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // The names are short, since a socket's path has at most 107 bytes: the private path ends with
    // `.XXXX/s`, which has one byte less than `api.sock`.
    let private = tempfile::Builder::new()
        .prefix(".")
        .rand_bytes(4)
        .tempdir_in(parent)?;
    let unopened = private.path().join("s");
    let listener = StdUnixListener::bind(&unopened)?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(&unopened, Permissions::from_mode(mode))?;
    fs::rename(&unopened, path)?;
    UnixListener::from_std(listener)
}

/// Connects to a socket without waiting, to find out whether a process listens on it. The error
/// `ConnectionRefused` means that no process listens; `WouldBlock` means that a process listens but
/// its queue is full.
pub fn probe(path: &Path) -> io::Result<()> {
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A blocking connect would wait for a live server whose queue is full.
    probe.set_nonblocking(true)?;
    probe.connect(&SockAddr::unix(path)?)
}

/// Fails unless the path is free, or is a socket on which no process listens.
fn refuse_living(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let problem = format!("{} exists and is not a socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
        Ok(_) => {}
    }
    match probe(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => {
            let problem = format!("another server listens on {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, problem))
        }
    }
}

/// The user of the process at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) uid: u32,
}

impl Peer {
    /// The user's id and name, such as `uid 1000 (alice)`; only the id if `/etc/passwd` has no name
    /// for it.
    pub(super) fn who(self) -> String {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        match user_name(&users, self.uid) {
            Some(name) => format!("uid {} ({name})", self.uid),
            None => format!("uid {}", self.uid),
        }
    }
}

/// The name of a user in the format of `/etc/passwd`.
fn user_name(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let id: u32 = fields.nth(1)?.parse().ok()?;
        (id == uid).then_some(name)
    })
}

/// Accepts connections of permitted users, and closes others before reading.
pub(super) struct Peers {
    listener: UnixListener,
    allowed: Vec<u32>,
}

impl Peers {
    /// Permits `admin_uids`, the server's effective user and root.
    pub(super) fn new(listener: UnixListener, admin_uids: &[u32]) -> Self {
        Self::of_user(rustix::process::geteuid().as_raw(), listener, admin_uids)
    }

    fn of_user(ours: u32, listener: UnixListener, admin_uids: &[u32]) -> Self {
        let allowed = [0, ours].into_iter().chain(admin_uids.iter().copied());
        Self {
            listener,
            allowed: allowed.collect(),
        }
    }

    fn admit(&self, stream: &UnixStream) -> Option<Peer> {
        let uid = match stream.peer_cred() {
            Ok(credentials) => credentials.uid(),
            Err(error) => {
                tracing::warn!(%error, "admin connection closed: the peer's user id cannot be read");
                return None;
            }
        };
        if !self.allowed.contains(&uid) {
            tracing::warn!(
                uid,
                "admin connection closed: the user is not among admin_uids"
            );
            return None;
        }
        Some(Peer { uid })
    }
}

impl Listener for Peers {
    type Io = UnixStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (UnixStream, Peer) {
        loop {
            let (stream, _) = Listener::accept(&mut self.listener).await;
            if let Some(peer) = self.admit(&stream) {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        let uid = rustix::process::geteuid().as_raw();
        Ok(Peer { uid })
    }
}

impl Connected<IncomingStream<'_, Peers>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Peers>) -> Self {
        *stream.remote_addr()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use testkit::{each_row, each_row_async};

    use super::*;

    #[test]
    fn a_user_is_named_by_the_first_entry_of_the_id() {
        let users = "root:x:0:0:root:/root:/bin/sh\n\n:x:7:7::/:\nbroken\nalice:x:1000:100::/:\nbob:x:1000:1::/:\n";
        each_row(
            [
                (0, Some("root")),
                (1000, Some("alice")),
                (7, None),
                (100, None),
            ],
            |(uid, name)| assert_eq!(user_name(users, uid), name, "{uid}"),
        );
    }

    /// The id of a user other than root and other than the user of the tests.
    const OTHER: u32 = 54_321;

    /// Starts a client that connects as a user other than root and waits until the server closes
    /// the connection. Returns the user id and the client. If the tests run as root, the client
    /// switches to another user first.
    fn connect(path: &Path) -> (u32, Child) {
        let own = rustix::process::geteuid().as_raw();
        let mut client = Command::new("python3");
        client
            .current_dir("/")
            .args(["-c", CLIENT])
            .arg(path)
            .stderr(Stdio::null());
        let uid = if own == 0 { OTHER + 1 } else { own };
        if own == 0 {
            client.uid(uid);
        }
        (uid, client.spawn().unwrap())
    }

    const CLIENT: &str = "import socket, sys; s = socket.socket(socket.AF_UNIX); \
        s.settimeout(5); s.connect(sys.argv[1]); sys.exit(s.recv(1) != b'')";

    /// Opens a socket in a directory that every user may enter.
    fn open(mode: u32) -> (tempfile::TempDir, std::path::PathBuf, UnixListener) {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let path = directory.path().join("api.sock");
        let listener = bind(&path, mode).unwrap();
        (directory, path, listener)
    }

    #[tokio::test]
    async fn a_user_outside_admin_uids_is_disconnected_even_at_mode_0666() {
        let (_directory, path, listener) = open(0o666);
        let mut peers = Peers::of_user(OTHER, listener, &[]);
        let (_, mut client) = connect(&path);
        let closed = tokio::task::spawn_blocking(move || client.wait().unwrap());
        tokio::select! {
            (_, peer) = peers.accept() => panic!("user {} was admitted", peer.uid),
            closed = closed => assert!(closed.unwrap().success(), "the client read data or timed out"),
        }
    }

    #[tokio::test]
    async fn users_in_admin_uids_and_the_servers_own_user_are_admitted() {
        each_row_async([true, false], async |listed| {
            let (_directory, path, listener) = open(0o666);
            let (uid, mut client) = connect(&path);
            let mut peers = match listed {
                true => Peers::of_user(OTHER, listener, &[uid]),
                false => Peers::of_user(uid, listener, &[]),
            };
            let (stream, peer) = peers.accept().await;
            assert_eq!(peer.uid, uid, "listed: {listed}");
            drop(stream);
            client.wait().unwrap();
        })
        .await;
    }

    /// Only root can connect as another user. If the tests run without root, this test checks only
    /// the mode.
    #[tokio::test]
    async fn mode_0600_keeps_other_users_from_connecting() {
        let (_directory, path, listener) = open(0o600);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        if rustix::process::geteuid().is_root() {
            let (uid, mut client) = connect(&path);
            let status = tokio::task::spawn_blocking(move || client.wait().unwrap());
            assert!(!status.await.unwrap().success(), "user {uid} connected");
            let connected = tokio::time::timeout(Duration::ZERO, listener.accept());
            assert!(connected.await.is_err(), "user {uid} is in the queue");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_socket_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let first = bind(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            bind(&path, 0o600).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop(first);
        let second = bind(&path, 0o660).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        drop(second);
        let entries = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(entries, 1, "only the socket is left");
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        fs::write(&path, "mine").unwrap();
        assert_eq!(
            bind(&path, 0o600).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
