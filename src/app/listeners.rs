//! The server's listeners and the listeners of leases. All of the server's listeners are opened
//! before the first is served.

use std::collections::HashSet;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use addons::contract::LeaseId;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::egress::EGRESS_PREFIX;
use super::failure::Failure;
use crate::admin::probe;
use crate::config::Listen;
use crate::dns::DnsServer;
use crate::ingress::{Engine, serve_unix};
use crate::registry::{LISTENER_PREFIX, Registry};

/// Limit on the connections of a TCP listener that wait to be accepted.
const BACKLOG: u32 = 4096;
/// The longest path of a Unix socket, in bytes.
const MAX_SOCKET_PATH: usize = 107;
/// The pause before the next attempt to open a lease's Unix listener.
const RETRY: Duration = Duration::from_secs(1);

/// The listeners of the server, bound but not yet served.
pub struct Listeners {
    pub proxy: Vec<TcpListener>,
    pub dns: DnsServer,
    pub mcp: Vec<TcpListener>,
    pub admin: UnixListener,
}

impl Listeners {
    /// Opens all listeners, and removes the sockets of leases and MCP servers that a killed proxy
    /// left. With `dns_may_move`, if another process has a configured port of DNS, DNS takes a free
    /// port at each configured IP address. Fails if a listener cannot be opened; the error names
    /// that listener.
    pub fn bind(listen: &Listen, admin_mode: u32, dns_may_move: bool) -> Result<Self, Failure> {
        let bind_all = |addresses: &[SocketAddr]| {
            let bound = addresses.iter().map(|at| bind_tcp(*at));
            bound.collect::<Result<Vec<_>, _>>()
        };
        let (proxy, mcp) = (bind_all(&listen.proxy)?, bind_all(&listen.mcp)?);
        let dns = match DnsServer::bind(&listen.dns) {
            Err(error) if dns_may_move && error.kind() == ErrorKind::AddrInUse => {
                let any = listen.dns.iter().map(|at| SocketAddr::new(at.ip(), 0));
                DnsServer::bind(&any.collect::<Vec<_>>())
            }
            bound => bound,
        };
        let dns = dns.map_err(|source| Failure::Dns { source })?;
        let admin = bind_admin(&listen.admin, admin_mode)?;
        remove_dead_listeners(socket_directory(listen));
        Ok(Self {
            proxy,
            dns,
            mcp,
            admin,
        })
    }

    /// Replaces the configured addresses of proxy, DNS and MCP by the bound ones. If a configured
    /// port is 0, the bound address has the port that the kernel chose.
    pub fn write_bound(&self, listen: &mut Listen) -> std::io::Result<()> {
        let bound = |listeners: &[TcpListener]| -> std::io::Result<Vec<_>> {
            listeners.iter().map(TcpListener::local_addr).collect()
        };
        listen.proxy = bound(&self.proxy)?;
        listen.dns = self.dns.local_addresses()?;
        listen.mcp = bound(&self.mcp)?;
        Ok(())
    }
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = (|| {
        let socket = match address {
            SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
            SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    })();
    bound.map_err(|source| Failure::Listen { address, source })
}

fn bind_admin(path: &Path, mode: u32) -> Result<UnixListener, Failure> {
    let failed = |source| Failure::Socket {
        path: path.to_owned(),
        source,
    };
    if let Some(directory) = path.parent() {
        // This directory also contains the leases' sockets, whose mode admits every user. A new
        // directory keeps other users away from them, unless the mode of the admin socket admits
        // other users.
        let closed = mode & 0o077 == 0;
        DirBuilder::new()
            .recursive(true)
            .mode(if closed { 0o700 } else { 0o711 })
            .create(directory)
            .map_err(failed)?;
    }
    crate::admin::bind(path, mode).map_err(failed)
}

/// The directory of the admin socket and of the sockets of leases and MCP servers.
pub fn socket_directory(listen: &Listen) -> &Path {
    let directory = listen.admin.parent();
    // The parent of a bare file name is the empty path.
    let directory = directory.filter(|directory| !directory.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// Like [`socket_directory`], as an absolute path, since `run` and the sandboxes of MCP servers
/// connect to the sockets from other working directories. The path stays relative if the absolute
/// path of a socket in it would be too long.
pub fn absolute_socket_directory(listen: &Listen) -> PathBuf {
    // `sandbox-012345678901.sock`, the name of a lease's socket, is the longest.
    const LONGEST: usize = MAX_SOCKET_PATH - "/sandbox-012345678901.sock".len();
    let directory = socket_directory(listen);
    let absolute = std::path::absolute(directory).ok();
    let absolute = absolute.filter(|path| path.as_os_str().len() <= LONGEST);
    absolute.unwrap_or_else(|| directory.to_owned())
}

/// Removes the sockets of leases and MCP servers that a killed proxy left: those that refuse
/// connections. Sockets of a running proxy stay.
fn remove_dead_listeners(directory: &Path) {
    // Errors are ignored: a dead socket that stays is harmless, since it refuses connections.
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket
            && entry.file_name().to_str().is_some_and(is_ours)
            && let Err(error) = probe(&entry.path())
            && error.kind() == ErrorKind::ConnectionRefused
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a file name has the form of the socket of a lease or an MCP server.
fn is_ours(name: &str) -> bool {
    let after = |prefix| name.strip_prefix(prefix);
    let digits = after(LISTENER_PREFIX).or_else(|| after(EGRESS_PREFIX));
    let digits = digits.and_then(|rest| rest.strip_suffix(".sock"));
    digits.is_some_and(|hex| hex.len() == 12 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Opens the Unix listener of every lease that was registered with the field `listener`. Follows
/// the registry until the shutdown, and retries listeners that cannot be opened. A listener closes
/// when its lease ends.
pub async fn follow_own_listeners(
    engine: Arc<Engine>,
    registry: Arc<Registry>,
    shutdown: CancellationToken,
) {
    let mut wanted = registry.subscribe_listeners();
    let mut open: HashSet<LeaseId> = HashSet::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        open.retain(|lease| now.contains_key(lease));
        let mut failed = false;
        for (lease, listed) in now {
            if open.contains(&lease) {
                continue;
            }
            let bound = bind_lease(&listed.socket);
            // `set` fails after the first attempt: the registration waits for the result of the
            // first attempt, and `opened` keeps that result.
            let _ = listed.opened.set(bound.is_ok());
            match bound {
                Ok(listener) => {
                    open.insert(lease);
                    let serving = serve_unix(Arc::clone(&engine), listener, listed.container);
                    tokio::spawn(async move {
                        serving.await;
                        let _ = std::fs::remove_file(listed.socket);
                    });
                }
                Err(error) => {
                    failed = true;
                    tracing::error!(path = %listed.socket.display(), %error, "the Unix listener of a container cannot be opened; trying again in 1 s");
                }
            }
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if failed => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Opens the socket of a lease. Its mode permits every user, since the container into which the
/// socket is mounted may run as any user.
fn bind_lease(path: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}
