//! The network access of a stdio server in its sandbox. The server reaches only its `hosts`, and
//! the proxy records its requests as requests of the container.

use serde_json::json;

use super::client::{Client, Era, Gateway, text};
use crate::support::Origin;

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
    let found: serde_json::Value = serde_json::from_str(text(&response)).unwrap();
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
