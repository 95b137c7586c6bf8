//! Isolation of server processes, and of sessions with servers, between containers.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Client, ERAS, Era, FIRST, Gateway, SECOND, assert_code, text};
use super::server::{McpServer, tool};
use crate::support::{SANDBOX, SOON, eventually, read_reply};

/// A stdio server that reports the files, variables, processes and hosts that it can reach.
pub const PROBE: &str = include_str!("probe.py");

/// The probe's entry in `mcp.yaml`.
pub fn probing() -> Value {
    json!({ "command": "python3", "args": ["-c", PROBE], "env": { "API_KEY": "of-the-server" } })
}

/// The probe with `unix_sockets: true`, with which it could reach every Unix socket that it sees.
fn with_sockets() -> Value {
    let mut mount = probing();
    mount["unix_sockets"] = true.into();
    mount
}

/// The report of the probe.
fn probed(client: &Client<'_>, arguments: Value) -> Value {
    let response = client.call("p_probe", arguments);
    serde_json::from_str(text(&response)).unwrap()
}

#[test]
fn a_stdio_server_sees_no_secrets_or_admin_socket_and_has_no_network() {
    let gateway = Gateway::with(&json!({ "mcpServers": { "p": with_sockets() } }), |setup| {
        setup
            .env
            .push(("APPLIANCE_SECRET".into(), "hunter2".into()));
    });
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["p_probe"]);
    let own = gateway.proxy.path("");
    let path = |name: &str| gateway.proxy.path(name);
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let found = probed(
        &client,
        json!({
            "paths": [
                path("api.sock"), path("data"), path("config"), path("certs/ca-key.pem"),
                path("config/mcp.yaml"), env!("CARGO_MANIFEST_DIR"), "/etc/shadow",
            ],
            "sockets": [path("api.sock")],
            "addresses": [
                ["127.0.0.1", outside.local_addr().unwrap().port()],
                ["127.0.0.1", gateway.address.port()],
                ["127.0.0.1", gateway.proxy.address.port()],
                ["192.0.2.1", 443],
            ],
        }),
    );
    assert_eq!(found["sees"], json!([]), "{found}");
    assert_eq!(found["reaches"], json!([]), "{found}");
    assert_eq!(found["status"]["NoNewPrivs"], "1");
    assert_eq!(found["status"]["Seccomp"], "2");
    assert_eq!(found["status"]["CapEff"], "0000000000000000");
    let environment = found["environment"].as_object().unwrap();
    assert_eq!(environment["API_KEY"], "of-the-server");
    assert!(!found.to_string().contains("hunter2"), "{found}");
    assert!(
        !found.to_string().contains(own.to_str().unwrap()),
        "{found}"
    );
    // The server sees no process outside its sandbox, and ends with the proxy.
    assert!(found["processes"].as_u64().unwrap() <= 4, "{found}");
    let inside = found["marker"].as_str().unwrap().to_owned();
    assert!(is_open(&inside));
    gateway.proxy.signal(rustix::process::Signal::KILL);
    eventually("the server is gone", SOON, || !is_open(&inside));
}

/// The kernel lists a Unix socket under the path that was passed to `bind`. If that path is
/// relative, the sandbox must search the mounted directories for the socket.
#[test]
fn a_stdio_server_cannot_reach_a_socket_bound_by_a_relative_path_below_its_directories() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [read, write] = directories.each_ref().map(|one| one.path());
    const BIND: &str = "import socket, sys; s = socket.socket(socket.AF_UNIX); \
                        s.bind('relative.sock'); s.listen(); print('ready', flush=True); \
                        sys.stdin.read()";
    let servers = [read, write].map(|path| {
        let mut server = Command::new("python3");
        let server = server.args(["-c", BIND]).current_dir(path);
        let server = server.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut ready = [0; 6];
        let output = server.stdout.as_mut().unwrap();
        output.read_exact(&mut ready).unwrap();
        server
    });
    let sockets = [read, write].map(|path| path.join("relative.sock"));
    for socket in &sockets {
        assert!(UnixStream::connect(socket).is_ok(), "{}", socket.display());
    }
    let mut mount = with_sockets();
    mount["read"] = json!([read]);
    mount["write"] = json!([write]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "p": mount } }));
    let client = Client::open(&gateway, Era::Legacy).wait_for(&["p_probe"]);
    let found = probed(&client, json!({ "sockets": sockets }));
    assert_eq!(found["reaches"], json!([]), "{found}");
    for mut server in servers {
        drop(server.stdin.take());
        server.wait().unwrap();
    }
}

/// Sockets below `read` and `write` are hidden when the server starts. Later ones are not.
#[test]
fn a_socket_bound_after_the_start_of_a_server_is_reached_only_with_unix_sockets() {
    let rows = [
        (Value::Null, false),
        (json!(false), false),
        (json!(true), true),
    ];
    each_row(rows, |(key, reached)| {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = probing();
        mount["write"] = json!([directory.path()]);
        if !key.is_null() {
            mount["unix_sockets"] = key;
        }
        let gateway = Gateway::start(&json!({ "mcpServers": { "p": mount } }));
        let client = Client::open(&gateway, Era::Legacy).wait_for(&["p_probe"]);
        let started = probed(&client, json!({}))["marker"].clone();
        let [stream, datagram] = ["s.sock", "d.sock"].map(|name| directory.path().join(name));
        let _stream = UnixListener::bind(&stream).unwrap();
        let _datagram = UnixDatagram::bind(&datagram).unwrap();
        let found = probed(
            &client,
            json!({ "sockets": [stream], "datagrams": [datagram] }),
        );
        assert_eq!(found["marker"], started, "the server started again");
        let all = json!([stream, datagram, datagram, datagram]);
        let expected = if reached { all } else { json!([]) };
        assert_eq!(found["reaches"], expected, "{found}");
        assert_eq!(found["pairs"], json!([true, true]));
    });
}

/// Whether a process is in the network namespace with this name.
fn is_open(namespace: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut names = processes.filter_map(|one| std::fs::read_link(one.path().join("ns/net")).ok());
    names.any(|name| name.as_os_str() == namespace)
}

/// The network namespace, which the probe reports as `marker`, differs between the two processes.
#[test]
fn each_container_has_its_own_process_of_a_stdio_server() {
    let gateway = Gateway::start(&json!({ "mcpServers": { "p": probing() } }));
    let first = Client::open(&gateway, Era::Legacy).wait_for(&["p_probe"]);
    let second = Client::of(&gateway, Era::Legacy, SECOND).wait_for(&["p_probe"]);
    let marker = |client: &Client<'_>| probed(client, json!({}))["marker"].clone();
    assert_eq!(marker(&first), marker(&first));
    assert_ne!(marker(&first), marker(&second));
}

#[test]
fn a_session_with_a_server_belongs_to_one_lease_unless_it_is_shared() {
    each_row([("container", 2), ("shared", 1)], |(scope, expected)| {
        for era in ERAS {
            let server = McpServer::start(vec![tool("read")]);
            let mut mount = server.mount();
            mount["scope"] = scope.into();
            let gateway = Gateway::start(&json!({ "mcpServers": { "kb": mount } }));
            let sources = [FIRST, SECOND];
            for source in sources {
                let client = Client::of(&gateway, era, source).wait_for(&["kb_read"]);
                for _ in 0..3 {
                    text(&client.call("kb_read", json!({})));
                }
            }
            // The modern era has no sessions. Instead, the test counts `server/discover`, whose
            // result the proxy caches.
            let (calls, field) = (server.calls(), "mcp-session-id");
            match era {
                Era::Legacy => {
                    let ids: BTreeSet<_> = calls.iter().map(|one| one.header(field)).collect();
                    assert!(!ids.contains(&None));
                    assert_eq!(ids.len(), expected, "{ids:?}");
                }
                Era::Modern => {
                    let discoveries = server.of("server/discover").len();
                    assert_eq!(discoveries, expected);
                    assert!(calls.iter().all(|one| one.header(field).is_none()));
                }
            }
            assert_eq!(calls.len(), 6);
        }
    });
}

/// The sessions of a lease end with it: the next container at the address starts without a session.
#[test]
fn a_session_ends_with_its_lease() {
    let server = McpServer::start(vec![tool("read")]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    let before = Client::open(&gateway, Era::Legacy).wait_for(&["kb_read"]);
    text(&before.call("kb_read", json!({})));
    let proxy = &gateway.proxy;
    proxy.admin("DELETE", "/internal/containers/sandbox", None);
    proxy.register("127.0.0.1", "next");
    let list = super::client::message(&1.into(), "tools/list", json!({})).to_string();
    assert_eq!(before.post(&[], list.as_bytes()).status, 404);
    let next = Client::open(&gateway, Era::Legacy).wait_for(&["kb_read"]);
    text(&next.call("kb_read", json!({})));
    let calls = server.calls();
    let session = |at: usize| calls[at].header("mcp-session-id").unwrap().to_owned();
    assert_ne!(session(0), session(1));
}

#[test]
fn a_container_reaches_only_the_mounts_that_are_for_it() {
    let servers = ["one", "two"].map(|name| McpServer::start(vec![tool(name)]));
    let mounts = |containers: [&str; 2]| {
        let mount = |at: usize| {
            let mut mount = servers[at].mount();
            mount["containers"] = json!([containers[at]]);
            mount
        };
        json!({ "mcpServers": { "a": mount(0), "b": mount(1) } })
    };
    let gateway = Gateway::start(&mounts([SANDBOX, "second"]));
    let sees = |source, own: &str, other: &str| {
        let client = Client::of(&gateway, Era::Modern, source).wait_for(&[own]);
        assert_eq!(client.tools(), [own]);
        text(&client.call(own, json!({})));
        assert_code(&client.call(other, json!({})), -32602);
        let mut stream = gateway.connect(source);
        stream
            .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .unwrap();
        let health = read_reply(&mut stream).unwrap().json();
        let servers: Vec<_> = health["servers"].as_object().unwrap().keys().collect();
        assert_eq!(servers, [&own[..1]]);
    };
    sees(FIRST, "a_one", "b_two");
    sees(SECOND, "b_two", "a_one");
    // An operator's question about the container also finds only these mounts.
    let explained = |server: &str, tool: &str| {
        let question = json!({
            "container": SANDBOX, "method": "tools/call", "server": server, "tool": tool,
        });
        gateway
            .proxy
            .admin("POST", "/internal/explain", Some(question))
    };
    assert_eq!(explained("a", "one").json()["allowed"], true);
    let refused = explained("b", "two");
    assert_eq!(refused.status, 400);
    assert!(
        refused
            .text()
            .contains("no server b is mounted for sandbox"),
        "{}",
        refused.text()
    );
    // A reload exchanges the servers of the two containers.
    let path = gateway.proxy.path("config/mcp.yaml");
    std::fs::write(path, mounts(["second", SANDBOX]).to_string()).unwrap();
    assert_eq!(
        gateway.proxy.admin("POST", "/internal/reload", None).status,
        200
    );
    sees(FIRST, "b_two", "a_one");
    sees(SECOND, "a_one", "b_two");
}

#[test]
fn an_operators_request_is_audited_as_such_and_as_the_containers_request() {
    let server = McpServer::start(vec![tool("read")]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    let params = json!({ "name": "kb_read", "arguments": {} });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let path = format!("/internal/containers/{SANDBOX}/mcp");
    let answer = gateway.proxy.admin("POST", &path, Some(request)).json();
    assert!(answer["result"].is_object(), "{answer}");
    let container = json!({ "method": "tools/call", "server": "kb", "tool": "read" });
    for line in [
        container,
        json!({ "method": "operator/mcp", "path": "tools/call" }),
    ] {
        let line = gateway.proxy.audited(line);
        assert_eq!(line["container_id"], SANDBOX);
        let is_act = line["rule"]
            .as_str()
            .is_some_and(|rule| rule.starts_with("operator: uid "));
        assert_eq!(is_act, line["method"] == "operator/mcp", "{line}");
    }
}

#[test]
fn a_name_of_two_tools_is_logged_with_both_tools() {
    let server = || McpServer::start(vec![tool("read"), tool("write")]);
    let (one, two) = (server(), server());
    let gateway = Gateway::start(&json!({
        "mcpServers": { "a": one.mount(), "b": two.mount() },
        "overrides": { "a:write": { "rename": "b_read" } },
    }));
    let client = Client::open(&gateway, Era::Modern).wait_for(&["a_read", "b_read", "b_write"]);
    text(&client.call("b_read", json!({})));
    assert_eq!((one.calls().len(), two.calls().len()), (1, 0));
    let log = gateway.proxy.log();
    let line = log
        .lines()
        .find(|line| line.contains("is the exposed name of"));
    let line = line.expect("the collision is in the log").replace('\\', "");
    assert!(
        line.contains(r#""b_read" is the exposed name of "write" of a and of "read" of b"#),
        "{line}"
    );
}
