//! Third-party programs as child processes. A [`Server`] is killed on drop.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{eventually, free_address};
use crate::tools::Tools;

/// Time limit for a program to start; interpreters start slowly on a busy machine.
pub const STARTUP: Duration = Duration::from_secs(60);

/// A command, not started yet, with only `PATH` and `PYTHONDONTWRITEBYTECODE` as environment.
pub fn program(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    command
}

/// Node.js, as a server that keeps idle connections open.
pub fn node_server(tools: &Tools) -> Command {
    let mut command = program(&tools.node());
    command.args(["--require", &tools.text("keep_open.cjs")]);
    command
}

/// An MCP server that listens on loopback.
pub struct Server {
    pub address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts the command that `command` makes for a free address, and waits until the server
    /// listens there.
    pub fn start(command: impl FnOnce(SocketAddr) -> Command) -> Self {
        let address = free_address();
        let mut command = command(address);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut server = Self { address, child };
        eventually(&format!("{command:?} listens"), STARTUP, || {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?} ended with {ended:?}");
            TcpStream::connect(address).is_ok()
        });
        server
    }

    /// Starts the server that the conformance suite expects, with the protocol's eras `legacy`
    /// (2025-11-25 and before), `modern` (2026-07-28) or `both`.
    pub fn everything(eras: &str, tools: &Tools) -> Self {
        Self::start(|address| {
            let mut command = program(&tools.python(2));
            command
                .args([&tools.text("everything.py"), eras])
                .arg(address.port().to_string())
                .env("PYTHONPATH", tools.path(EVERYTHING));
            command
        })
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of the everything-server in the source distribution.
const EVERYTHING: &str = "source/examples/servers/everything-server";

/// The server that the conformance suite expects, as a stdio mount.
pub fn everything_on_stdio(tools: &Tools) -> Value {
    let run = "from mcp_everything_server.server import mcp; mcp.run(transport='stdio')";
    json!({
        "command": tools.python(2),
        "args": ["-c", run],
        "env": { "PYTHONPATH": tools.text(EVERYTHING), "PYTHONDONTWRITEBYTECODE": "1" },
        "read": tools.readable(),
    })
}
