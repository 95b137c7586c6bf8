//! The network access of a stdio server in its sandbox. The server reaches only its `hosts`, and
//! the proxy records its requests as requests of the container. Operators learn which hosts it lacks.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Client, Era, Gateway, text};
use crate::support::{Origin, SOON, eventually};

/// A server that fetches URLs through the proxy that its environment names, resolves names, and
/// sends requests directly to the proxy's listener in the sandbox.
const FETCHER: &str = r#"
import json, socket, sys, urllib.request

def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=20).status
    except Exception as error:
        return str(error)

def resolves(name):
    try:
        return bool(socket.getaddrinfo(name, 443))
    except OSError:
        return False

def direct(path):
    with socket.create_connection(("127.0.0.1", 8090), 10) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: unified-proxy:8090\r\nContent-Length: 0\r\n\r\n".encode())
        return client.recv(4096).decode().split("\r\n")[0]

for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params") or {}
    result = None
    if message.get("method") == "initialize":
        result = dict(protocolVersion=params["protocolVersion"], capabilities=dict(tools={}))
        result["serverInfo"] = dict(name="f", version="1")
    elif message.get("method") == "tools/list":
        result = dict(tools=[dict(name="fetch", inputSchema=dict(type="object"))])
    elif message.get("method") == "tools/call":
        asked = params["arguments"]
        found = dict(
            fetched=[fetch(url) for url in asked["urls"]],
            resolved=[resolves(name) for name in asked["names"]],
            direct=[direct(path) for path in asked["paths"]],
        )
        result = dict(content=[dict(type="text", text=json.dumps(found))])
    if result is not None:
        print(json.dumps(dict(jsonrpc="2.0", id=message["id"], result=result)), flush=True)
"#;

#[test]
fn a_stdio_server_reaches_only_its_hosts_and_is_audited_as_its_container() {
    let origin = Origin::start();
    let server = json!({
        "command": "python3", "args": ["-c", FETCHER], "hosts": ["other.example.com"],
    });
    let gateway = Gateway::with(&json!({ "mcpServers": { "f": server } }), |setup| {
        let trusted = setup.dir().join("upstream-ca.pem");
        std::fs::write(trusted, &origin.ca_pem).unwrap();
        // The server may reach only its `hosts`. `allowlist.yaml` does not apply to the server.
        setup.allowlist["domains"] = json!(["api.example.com"]);
        setup.proxy["upstream"]["hosts"]["api.example.com"] = origin.https.to_string().into();
        setup.proxy["upstream"]["hosts"]["other.example.com"] = origin.https.to_string().into();
    });
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["f_fetch"]);
    let response = client.call(
        "f_fetch",
        json!({
            "urls": ["https://other.example.com/echo", "https://api.example.com/echo"],
            "names": ["other.example.com", "api.example.com"],
            "paths": ["/mcp", "/message"],
        }),
    );
    let found: Value = serde_json::from_str(text(&response)).unwrap();
    let log = gateway.proxy.log();
    let denied = found["fetched"][1].as_str().unwrap_or_default();
    assert!(denied.contains("403"), "{found}\n{log}");
    assert_eq!(found["resolved"], json!([true, false]), "{found}\n{log}");
    let refused = json!(["HTTP/1.1 400 Bad Request", "HTTP/1.1 400 Bad Request"]);
    assert_eq!(found["direct"], refused, "{found}");
    let tunnel = gateway
        .proxy
        .audited(json!({ "kind": "tunnel", "host": "other.example.com" }));
    assert_eq!(tunnel["container_id"], "sandbox", "{tunnel}");
    assert_eq!(tunnel["rule"], "system: mcp:f", "{tunnel}");
    assert_eq!(found["fetched"][0], 200, "{found}\n{log}");
    assert_eq!(origin.only().authority, "other.example.com");
}

/// A server that begins with requests, and then waits, as a package runner that cannot reach its
/// registry.
const NEEDY: &str = r#"
import os, socket, time, urllib.request
for url in os.environ["WANTED"].split():
    try:
        urllib.request.urlopen(url, timeout=20)
    except OSError:
        pass
try:
    socket.getaddrinfo("names.example.com", 443)
except OSError:
    pass
time.sleep(600)
"#;

/// Runs `mcp` with these arguments, as a client in the first container.
fn mcp(gateway: &Gateway, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unified-proxy"));
    let url = format!("http://{}/mcp", gateway.address);
    command.arg("mcp").args(arguments).args(["--url", &url]);
    command.stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_hosts_that_were_refused_to_a_server_are_named_wherever_it_is_missing() {
    let wanted = "https://registry.example.com/a http://files.example.com/b \
                  https://files.example.com:8443/c https://listed.example.com/d";
    let others = [
        "files.example.com:8443",
        "http://files.example.com (only https is permitted)",
    ];
    each_row(
        [(
            json!(["listed.example.com"]),
            json!(["names.example.com", "registry.example.com"]),
        )],
        |(hosts, named)| {
            let mut refused = json!(others);
            let named = named.as_array().unwrap();
            refused.as_array_mut().unwrap().extend(named.clone());
            let server = json!({
                "command": "python3", "args": ["-c", NEEDY], "env": { "WANTED": wanted }, "hosts": hosts,
            });
            let gateway = Gateway::start(&json!({ "mcpServers": { "needy": server } }));
            let all: Vec<_> = refused
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one.as_str().unwrap())
                .collect();
            let all = all.join(", ");
            let mut listed = mcp(&gateway, &["list"]);
            // The list does not wait until the server has tried all of them.
            eventually("all hosts were refused", SOON, || {
                listed = mcp(&gateway, &["list"]);
                stderr(&listed).contains(&format!("refused to it: {all}:"))
            });
            let said = stderr(&listed);
            assert_eq!(listed.status.code(), Some(1), "{said}");
            assert_eq!(listed.stdout, b"no tools\n");
            assert!(said.contains("server needy is connecting"), "{said}");
            let socket = gateway.proxy.path("api.sock").display().to_string();
            let mut operator = Command::new(env!("CARGO_BIN_EXE_unified-proxy"));
            operator.args([
                "mcp",
                "list",
                "--json",
                "--container",
                "sandbox",
                "--socket",
                &socket,
            ]);
            let operator = operator.output().unwrap();
            assert_eq!(operator.status.code(), Some(1));
            let listed: Value = serde_json::from_slice(&operator.stdout).unwrap();
            assert_eq!(
                listed["servers"]["needy"]["refused_hosts"], refused,
                "{listed}"
            );
            let health = gateway.health();
            assert_eq!(health["status"], "degraded", "{health}");
            assert_eq!(
                health["refused_hosts"],
                json!({ "needy": refused }),
                "{health}"
            );
            let called = mcp(&gateway, &["call", "needy_tool"]);
            assert!(stderr(&called).contains(&all), "{}", stderr(&called));
            assert_eq!(called.status.code(), Some(1));
            // Each request is in the audit log, as one of the container.
            let denied = json!({ "host": "registry.example.com", "code": "domain_not_allowed" });
            assert_eq!(gateway.proxy.audited(denied)["container_id"], "sandbox");
        },
    );
}

#[test]
fn npx_whose_hosts_lack_its_registry_names_the_reason() {
    if Command::new("npx").arg("--version").output().is_err() {
        println!("npx is not installed");
        return;
    }
    let registry = "https://registry.example.com/";
    each_row(
        [
            (json!([]), "it has no `hosts` in mcp.yaml"),
            (json!(["other.example.com"]), "registry.example.com"),
        ],
        |(hosts, reason)| {
            let server = json!({
                "command": ["npx", "-y", "server-of-no-registry"], "hosts": hosts,
                "env": { "npm_config_registry": registry },
            });
            let works = json!({ "command": "python3", "args": ["-c", FETCHER] });
            let servers = json!({ "everything": server, "f": works });
            let gateway = Gateway::start(&json!({ "mcpServers": servers }));
            Client::open(&gateway, Era::Legacy).wait_for(&["f_fetch"]);
            let listed = mcp(&gateway, &["list"]);
            let said = stderr(&listed);
            assert_eq!(listed.status.code(), Some(0), "one server is ready: {said}");
            assert!(said.contains("server everything is "), "{said}");
            assert!(said.contains(reason), "{said}");
            assert!(!said.contains("server f "), "{said}");
            let called = stderr(&mcp(&gateway, &["call", "everything_echo"]));
            assert!(called.contains(reason), "{called}");
        },
    );
}

#[test]
fn a_command_that_waits_for_a_server_says_so_only_on_a_terminal() {
    // Gives the command a terminal, whose output it copies.
    const PTY: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    each_row(
        [
            (&["list"][..], true),
            (&["call", "slow_tool"], true),
            (&["list"], false),
        ],
        |(arguments, on_terminal)| {
            let server = json!({ "command": "sleep", "args": ["600"] });
            let gateway = Gateway::start(&json!({ "mcpServers": { "slow": server } }));
            let output = match on_terminal {
                true => {
                    let url = format!("http://{}/mcp", gateway.address);
                    let mut command = Command::new("python3");
                    command.args(["-c", PTY, env!("CARGO_BIN_EXE_unified-proxy"), "mcp"]);
                    command.args(arguments).args(["--url", &url]);
                    command.stdin(Stdio::null()).output().unwrap()
                }
                false => mcp(&gateway, arguments),
            };
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let waits = said.starts_with("unified-proxy: waiting for the ");
            assert_eq!(waits, on_terminal, "{said}");
            assert_eq!(output.status.code(), Some(1), "{said}");
        },
    );
}
