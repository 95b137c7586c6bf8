//! Opens the Unix and the TCP listener, and warns of access that they may grant unintentionally.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::sleep;

use super::socket::{LOCK_TIMEOUT, SocketFile, listen_at};
use crate::access::TOKEN_VARIABLE;
use crate::config::{Config, TcpAddress};
use crate::connection::Stream;
use crate::report;

/// The time without traffic after which a keep-alive probe is sent to a TCP client, and the time
/// between two probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The number of unanswered probes after which a TCP connection is closed. A command without output
/// therefore ends about a minute after its client's machine has vanished.
const KEEPALIVE_PROBES: u32 = 3;
/// The pause after a failed accept: descriptors or memory ran out, and are freed when connections
/// close.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The open listeners.
pub struct Listeners {
    unix: UnixListener,
    tcp: Option<TcpListener>,
    /// Removes the socket's file when it is dropped.
    file: SocketFile,
    socket_path: PathBuf,
    socket_mode: u32,
    /// Why the socket could not be made again.
    failed: Option<String>,
}

impl Listeners {
    /// Opens the listeners of `config`, and writes their addresses and warnings to standard error.
    ///
    /// # Errors
    ///
    /// A sentence that names the socket or the address that cannot be opened.
    pub async fn open(config: &Config) -> Result<Self, String> {
        let (unix, file) = listen(&config.socket_path, config.socket_mode, LOCK_TIMEOUT)?;
        let (mut tcp, mut local) = (None, None);
        if let Some(address) = &config.tcp {
            let listener = listen_tcp(address).await?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            report(&format!("listening at {address}"));
            (tcp, local) = (Some(listener), Some(address));
        }
        for warning in warnings(config, local) {
            report(&format!("WARNING: {warning}"));
        }
        Ok(Self {
            unix,
            tcp,
            file,
            socket_path: config.socket_path.clone(),
            socket_mode: config.socket_mode,
            failed: None,
        })
    }

    /// Whether clients at the socket's path do not reach this listener. Reports that once.
    pub fn are_lost(&self) -> bool {
        let lost = !self.file.is_ours();
        if lost && self.failed.is_none() {
            report(
                "WARNING: the Unix socket was removed or replaced: every request is ended, and the \
                 socket is made again",
            );
        }
        lost
    }

    /// Makes the socket again. Reports a failure, unless it is the same as the last one.
    pub fn renew(&mut self) {
        match listen(&self.socket_path, self.socket_mode, Duration::ZERO) {
            Ok((unix, file)) => (self.unix, self.file, self.failed) = (unix, file, None),
            Err(error) if self.failed.as_ref() == Some(&error) => {}
            Err(error) => {
                report(&format!("error: {error}"));
                self.failed = Some(error);
            }
        }
    }

    /// Accepts the next client. Cancel safe.
    pub async fn accept(&self) -> Stream {
        loop {
            let accepted = tokio::select! {
                unix = self.unix.accept() => unix.map(|(stream, _)| Stream::Unix(stream)),
                tcp = accept_tcp(self.tcp.as_ref()) => tcp.map(Stream::Tcp),
            };
            match accepted {
                Ok(Stream::Tcp(stream)) if probe_when_silent(&stream).is_err() => {}
                Ok(stream) => return stream,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    report(&format!("cannot accept a connection: {error}"));
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn listen(
    path: &Path,
    mode: u32,
    lock_timeout: Duration,
) -> Result<(UnixListener, SocketFile), String> {
    let (unix, file) = listen_at(path, mode, lock_timeout)?;
    let unix = UnixListener::from_std(unix)
        .map_err(|error| format!("cannot watch the Unix socket: {error}"))?;
    report(&format!("listening at {}", path.display()));
    Ok((unix, file))
}

async fn accept_tcp(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

/// Enables keep-alive probes, and disables Nagle's algorithm. Fails if the client has disconnected.
fn probe_when_silent(stream: &TcpStream) -> rustix::io::Result<()> {
    set_tcp_nodelay(stream, true)?;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEPALIVE)?;
    set_tcp_keepintvl(stream, KEEPALIVE)?;
    set_tcp_keepcnt(stream, KEEPALIVE_PROBES)
}

async fn listen_tcp(address: &TcpAddress) -> Result<TcpListener, String> {
    let TcpAddress { host, port } = address;
    TcpListener::bind((host.as_str(), *port))
        .await
        .map_err(|error| format!("cannot listen on TCP_HOST {host}, TCP_PORT {port}: {error}"))
}

/// Warnings of access that this configuration grants and that the operator may not intend. `tcp` is
/// the address of the TCP listener.
fn warnings(config: &Config, tcp: Option<SocketAddr>) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(address) = tcp
        && !address.ip().to_canonical().is_loopback()
        && !config.require_auth
    {
        warnings.push(format!(
            "{address} is not a loopback address, and requests without a token are served: every \
             client that reaches it can run commands. Set SIDECAR_REQUIRE_AUTH=true and \
             {TOKEN_VARIABLE}"
        ));
    }
    if config.socket_mode & 0o002 != 0 && !config.require_auth {
        warnings.push(format!(
            "SOCKET_MODE {:04o} lets every user run commands here. Use 0660 and a group, or \
             SIDECAR_REQUIRE_AUTH=true",
            config.socket_mode
        ));
    }
    if config.allow_outside {
        warnings.push(
            "SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT is true: file operations reach everything that \
             this process may reach"
                .to_owned(),
        );
    }
    warnings
}
