//! Real clients with real servers: each client lists the tools and calls one tool of each server,
//! over each transport that the client supports. `docs/mcp-compatibility.md` has the results.

use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use crate::gateway::Gateway;
use crate::programs::{Server, node_server, program};
use crate::support::{Origin, Ran};
use crate::table;
use crate::tools::Tools;

/// The content of the filesystem server's file.
const NOTE: &str = "kept in a file";

/// The transport between a client and the gateway.
#[derive(Clone, Copy, Debug)]
pub enum Transport {
    Http,
    Sse,
    Stdio,
}

impl Transport {
    const ALL: [Self; 3] = [Self::Http, Self::Sse, Self::Stdio];

    fn argument(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Sse => "sse",
            Self::Stdio => "stdio",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "Streamable HTTP",
            Self::Sse => "HTTP+SSE",
            Self::Stdio => "`unified-proxy mcp stdio`",
        }
    }

    fn target(self, gateway: &Gateway) -> String {
        match self {
            Self::Http => gateway.url("/mcp"),
            Self::Sse => gateway.url("/sse"),
            Self::Stdio => json!(gateway.bridge()).to_string(),
        }
    }
}

/// A client, and the name of its library in `client.py` or `client.mjs`.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub name: &'static str,
    runtime: Runtime,
    library: &'static str,
    pub transports: &'static [Transport],
}

#[derive(Clone, Copy, Debug)]
enum Runtime {
    /// The virtual environment with this version of the SDK.
    Python(u8),
    Node,
}

const fn python(name: &'static str, version: u8, library: &'static str) -> Client {
    Client {
        name,
        runtime: Runtime::Python(version),
        library,
        transports: &Transport::ALL,
    }
}

const fn node(name: &'static str, library: &'static str) -> Client {
    Client {
        name,
        runtime: Runtime::Node,
        library,
        transports: &Transport::ALL,
    }
}

pub const CLIENTS: [Client; 8] = [
    python("Python `mcp` 1.30", 1, "sdk_1"),
    python("Python `mcp` 2.3", 2, "sdk_2"),
    python("Python `mcp` 2.3, `mode=\"legacy\"`", 2, "sdk_2_legacy"),
    python("`fastmcp` 4.1", 2, "fastmcp"),
    python("`langchain-mcp-adapters` 0.3", 1, "langchain"),
    node("TypeScript `@modelcontextprotocol/sdk` 1.32", "sdk"),
    node("Inspector 2.12, `--cli`", "inspector"),
    Client {
        transports: &[Transport::Http, Transport::Stdio],
        ..node(
            "Inspector 2.12, `--cli --protocol-era modern`",
            "inspector_modern",
        )
    },
];

/// The output of a client.
#[derive(Debug, Deserialize)]
pub struct Found {
    /// The negotiated revision of the protocol, if the client prints it.
    pub revision: Option<String>,
    pub tools: Vec<Value>,
    /// The text of each result.
    pub results: Vec<String>,
}

impl Client {
    /// Runs the client against the gateway. The client lists the tools and makes `calls`, a JSON
    /// list of pairs of tool and arguments. Panics if the client fails or takes over 60 s.
    pub fn run(
        &self,
        tools: &Tools,
        transport: Transport,
        gateway: &Gateway,
        calls: &Value,
    ) -> Found {
        let (runtime, script) = match self.runtime {
            Runtime::Python(version) => (tools.python(version), "client.py"),
            Runtime::Node => (tools.node(), "client.mjs"),
        };
        let home = TempDir::new().unwrap();
        let ran = Ran::of(
            program("timeout")
                .args(["60", &runtime, &tools.text(script), self.library])
                .args([transport.argument(), &transport.target(gateway)])
                .arg(calls.to_string())
                .env("INSPECTOR", tools.package(INSPECTOR))
                .env("HOME", home.path()),
        );
        serde_json::from_str(&ran.ok()).unwrap()
    }
}

const INSPECTOR: &str = "inspector/clients/launcher/build/index.js";
/// The everything server, in the packages.
pub const EVERYTHING: &str = "server-everything/dist/index.js";
const FILESYSTEM: &str = "server-filesystem/dist/index.js";

/// A mounted server, the tool that each client calls, and a text that the tool's result contains.
pub struct Mount {
    /// The heading of the server's column in the table.
    pub name: &'static str,
    key: &'static str,
    definition: Value,
    tool: &'static str,
    arguments: Value,
    answer: &'static str,
}

impl Mount {
    fn exposed(&self) -> String {
        format!("{}_{}", self.key, self.tool)
    }
}

/// The servers that are mounted over HTTP, and the directory of the filesystem server.
struct Upstreams {
    streamable: Server,
    sse: Server,
    directory: TempDir,
}

impl Upstreams {
    fn start(tools: &Tools) -> Self {
        let everything = |transport: &'static str| {
            Server::start(|address| {
                let mut command = node_server(tools);
                command.args([&tools.package(EVERYTHING), transport]);
                command.env("PORT", address.port().to_string());
                command
            })
        };
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("note.txt"), NOTE).unwrap();
        Self {
            streamable: everything("streamableHttp"),
            sse: everything("sse"),
            directory,
        }
    }

    fn mounts(&self, tools: &Tools) -> [Mount; 6] {
        let echo = |name, key, definition| Mount {
            name,
            key,
            definition,
            tool: "echo",
            arguments: json!({ "message": "hello" }),
            answer: "Echo: hello",
        };
        let stdio = |command: String, args: &[&str]| {
            json!({
                "command": command, "args": args, "read": tools.readable(),
                "env": { "PYTHONDONTWRITEBYTECODE": "1" },
            })
        };
        let everything = tools.package(EVERYTHING);
        [
            echo(
                "`server-everything`, stdio",
                "everything",
                stdio(tools.node(), &[&everything]),
            ),
            echo(
                "`server-everything`, Streamable HTTP",
                "streamable",
                json!({ "type": "http", "url": self.streamable.url("/mcp") }),
            ),
            echo(
                "`server-everything`, HTTP+SSE",
                "events",
                json!({ "type": "sse", "url": self.sse.url("/sse") }),
            ),
            self.filesystem(stdio(tools.node(), &[&tools.package(FILESYSTEM)])),
            Mount {
                name: "`mcp-server-time`",
                key: "time",
                definition: stdio(tools.python(2), &["-m", "mcp_server_time"]),
                tool: "get_current_time",
                arguments: json!({ "timezone": "Asia/Tokyo" }),
                answer: "\"timezone\": \"Asia/Tokyo\"",
            },
            fetch(stdio(
                tools.python(2),
                &["-m", "mcp_server_fetch", "--allow-private-ips"],
            )),
        ]
    }

    /// The filesystem server. It serves one directory: the one in `args`. `read` makes that
    /// directory visible in the server's sandbox.
    fn filesystem(&self, mut definition: Value) -> Mount {
        let directory = self.directory.path().display().to_string();
        for list in ["args", "read"] {
            let list = definition[list].as_array_mut().unwrap();
            list.push(directory.as_str().into());
        }
        Mount {
            name: "`server-filesystem`",
            key: "files",
            definition,
            tool: "read_text_file",
            arguments: json!({ "path": format!("{directory}/note.txt") }),
            answer: NOTE,
        }
    }
}

/// The fetch server. It reaches one host, through the proxy.
fn fetch(mut definition: Value) -> Mount {
    definition["hosts"] = json!(["api.example.com"]);
    Mount {
        name: "`mcp-server-fetch`",
        key: "fetch",
        definition,
        tool: "fetch",
        arguments: json!({ "url": "https://api.example.com/echo" }),
        answer: "\"authority\":\"api.example.com\"",
    }
}

/// Installs clients and servers while other tests run, which takes minutes the first time.
#[test]
fn clients_and_servers_are_installed() {
    if let Some(tools) = Tools::install("installation of clients and servers") {
        for file in [INSPECTOR, EVERYTHING, FILESYSTEM] {
            let file = tools.package(file);
            assert!(fs::exists(&file).unwrap(), "{file}");
        }
    }
}

#[test]
fn every_client_calls_a_tool_of_every_server_over_each_of_its_transports() {
    let Some(tools) = Tools::install("MCP clients with MCP servers") else {
        return;
    };
    let (upstreams, origin) = (Upstreams::start(&tools), Origin::start());
    let mounts = upstreams.mounts(&tools);
    let servers: serde_json::Map<_, _> = mounts
        .iter()
        .map(|mount| (mount.key.to_owned(), mount.definition.clone()))
        .collect();
    let gateway = Gateway::start(&origin, &json!({ "mcpServers": servers }));
    gateway.wait_for(&mounts.each_ref().map(Mount::exposed));
    let calls = mounts
        .iter()
        .map(|mount| json!([mount.exposed(), mount.arguments]))
        .collect();
    let mut lines = Vec::new();
    let rows = CLIENTS.iter().flat_map(|client| {
        let transports = client.transports.iter();
        transports.map(move |transport| (client.name, *client, *transport))
    });
    each_row(rows, |(_, client, transport)| {
        let found = client.run(&tools, transport, &gateway, &calls);
        for (mount, result) in mounts.iter().zip(&found.results) {
            let name = mount.exposed();
            let is_listed = found.tools.iter().any(|tool| tool["name"] == name);
            assert!(is_listed, "{name} is not in {:?}", found.tools);
            assert!(result.contains(mount.answer), "{name}: {result}");
        }
        assert_eq!(found.results.len(), mounts.len());
        lines.push(table::line(&client, transport, &found));
    });
    table::compare(&mounts, &lines, &tools);
}
