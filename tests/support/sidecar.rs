//! Runs the real coding sidecar on a temporary workspace.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::free_address;

/// How clients reach the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// On its Unix socket, without a token.
    Unix,
    /// On TCP, with a token that every request needs.
    TcpWithToken,
}

/// The token of [`Transport::TcpWithToken`].
const TOKEN: &str = "s3cret-0123456789";

pub struct Sidecar {
    child: Child,
    directory: TempDir,
    address: SocketAddr,
    transport: Transport,
}

impl Sidecar {
    pub fn start(transport: Transport) -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::create_dir(directory.path().join("workspace")).unwrap();
        let address = free_address();
        Self {
            child: spawn(directory.path(), address, transport),
            directory,
            address,
            transport,
        }
    }

    /// The root of the sidecar's workspace.
    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    /// Path of the sidecar's binary, of the same profile as the proxy's. Cargo does not build another
    /// package's binary for these tests, so this function builds it if it is missing or older than its
    /// sources.
    pub fn binary() -> &'static Path {
        static BINARY: OnceLock<PathBuf> = OnceLock::new();
        BINARY.get_or_init(|| {
            let folder = Path::new(env!("CARGO_BIN_EXE_unified-proxy"))
                .parent()
                .unwrap();
            let binary = folder.join("coding-sidecar");
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("coding-sidecar");
            let built = std::fs::metadata(&binary).and_then(|file| file.modified());
            if !built.is_ok_and(|built| {
                built >= newest(&sources.join("src")).max(newest(&sources.join("Cargo.toml")))
            }) {
                build(folder);
            }
            binary
        })
    }

    /// The sidecar's server entry in `mcp.yaml`.
    pub fn mount(&self) -> Value {
        let endpoint = match self.transport {
            Transport::Unix => json!({ "socketPath": self.directory.path().join("c.sock") }),
            Transport::TcpWithToken => json!({
                "tcp": { "host": self.address.ip().to_string(), "port": self.address.port() },
                "auth": { "token": TOKEN, "required": true },
            }),
        };
        json!({ "coding_sidecar": endpoint })
    }

    /// Kills the sidecar with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the sidecar again with the same workspace, socket and address.
    pub fn restart(&mut self) {
        self.child = spawn(self.directory.path(), self.address, self.transport);
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // A test may have killed the process already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(directory: &Path, address: SocketAddr, transport: Transport) -> Child {
    let mut command = Command::new(Sidecar::binary());
    command
        .env("SOCKET_PATH", directory.join("c.sock"))
        .env("WORKSPACE_ROOT", directory.join("workspace"))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if transport == Transport::TcpWithToken {
        command
            .env("TCP_HOST", address.ip().to_string())
            .env("TCP_PORT", address.port().to_string())
            .env("SIDECAR_AUTH_TOKEN", TOKEN)
            .env("SIDECAR_REQUIRE_AUTH", "true");
    }
    command.spawn().unwrap()
}

fn build(folder: &Path) {
    let profile = match folder.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "coding-sidecar",
        ])
        .args(["--profile", profile, "--target-dir"])
        .arg(folder.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(status.unwrap().success(), "coding-sidecar cannot be built");
}

/// The latest modification time of the files at or below a path.
fn newest(path: &Path) -> SystemTime {
    if !path.is_dir() {
        return std::fs::metadata(path).unwrap().modified().unwrap();
    }
    let entries = std::fs::read_dir(path).unwrap();
    let times = entries.map(|entry| newest(&entry.unwrap().path()));
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}
