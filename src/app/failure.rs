//! Fatal errors and their exit codes.

use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use crate::config::ConfigErrors;
use crate::exit_code as code;
use crate::tls::CaError;

/// The reason why the server could not start or must end.
#[derive(Debug, Error)]
pub enum Failure {
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    #[error("the interception CA cannot be used: {0}")]
    Ca(#[from] CaError),
    #[error("the data directory {} cannot be used: {source}; make it a directory that this user can write to, or set another `data_dir` in proxy.yaml", path.display())]
    DataDir {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A state directory of `dev` that another user made, or could change.
    #[error("{} {why}, so another user could know the CA's key or answer for the server: start in another directory, or set `data_dir` and `listen.admin` in proxy.yaml", path.display())]
    Foreign { path: PathBuf, why: &'static str },
    /// A setting that cannot be used. The text names the setting.
    #[error("{0}")]
    Setting(String),
    /// A listener of the proxy or of the MCP gateway.
    #[error("cannot listen on {address} over TCP: {source}{}", advice(source))]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// The text of `source` names the address and the protocol.
    #[error("{source}{}", advice(source))]
    Dns { source: std::io::Error },
    /// The admin socket.
    #[error("cannot listen on {}: {source}; choose another path under `listen.admin` in proxy.yaml, or make its directory writable for this user", path.display())]
    Socket {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is in use by another server{}: stop that server, or choose another `data_dir` in proxy.yaml", path.display(), named(*pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    /// A fault of this program or of the machine.
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Ca(_)
            | Self::DataDir { .. }
            | Self::Foreign { .. }
            | Self::Setting(_) => code::CONFIG,
            Self::Listen { .. } | Self::Dns { .. } | Self::Socket { .. } | Self::InUse { .. } => {
                code::UNAVAILABLE
            }
            Self::Internal(_) => code::SOFTWARE,
        }
    }
}

/// Formats the process id as `, process 123` for the text of an error; empty if the id is unknown.
fn named(pid: Option<u32>) -> String {
    pid.map(|pid| format!(", process {pid}"))
        .unwrap_or_default()
}

/// The end of the text of an error: how to make the address usable.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another process has the port: stop that process, or choose another port under `listen` in proxy.yaml (with `dev`, also by --proxy-port, --dns-port or --mcp-port)"
        }
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE: grant it, or choose another port under `listen` in proxy.yaml"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "; no interface of this machine has the address: choose another one under `listen` in proxy.yaml"
        }
        _ => "",
    }
}
