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
    #[error("{}: {source}; make it a directory that this user can write to", path.display())]
    DataDir {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{0}")]
    Setting(String),
    #[error("cannot listen on {address} for the proxy: {source}{}", advice(source))]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// The source's text has the address and the protocol.
    #[error("{source}{}", advice(source))]
    Dns { source: std::io::Error },
    #[error("cannot listen on {}: {source}; choose another path under `listen.admin` in proxy.yaml, or make its directory writable for this user", path.display())]
    Socket {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is in use by another server{}: stop that one, or choose another `data_dir` in proxy.yaml", path.display(), named(*pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Ca(_) | Self::DataDir { .. } | Self::Setting(_) => code::CONFIG,
            Self::Listen { .. } | Self::Dns { .. } | Self::Socket { .. } | Self::InUse { .. } => {
                code::UNAVAILABLE
            }
            Self::Internal(_) => code::SOFTWARE,
        }
    }
}

fn named(pid: Option<u32>) -> String {
    pid.map(|pid| format!(", process {pid}"))
        .unwrap_or_default()
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another process has the port: stop it, or choose another one under `listen` in proxy.yaml (`dev` takes --proxy-port and --dns-port too)"
        }
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE: grant it, or choose another one under `listen` in proxy.yaml"
        }
        std::io::ErrorKind::AddrNotAvailable => "; no interface of this machine has the address",
        _ => "",
    }
}
