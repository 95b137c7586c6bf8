//! Reads the JSON of MCP clients, and files of the polis gateway.

use super::*;

#[test]
fn json_of_clients_is_read_with_warnings_for_unused_keys() {
    let text = r#"{
  "mcpServers": {
    "files": {"type": "stdio", "command": "npx", "args": ["-y", "server", "/workspace"], "env": {}, "alwaysAllow": ["read"], "alwaysLoad": true, "disabled": false, "timeout": 30},
    "web": {"httpUrl": "http://127.0.0.1:9000/mcp", "trust": true, "timeout": 600000},
    "old": {"type": "sse", "url": "https://old.example.com/sse"},
    "off": {"command": "no", "disabled": true}
  },
  "overrides": {"files:read_file": {"rename": "read"}}
}"#;
    let (settings, _, warnings) = read_with(text, &[]).unwrap();
    let names: Vec<_> = settings.servers.keys().map(|name| &**name).collect();
    assert_eq!(names, ["files", "old", "web"]);
    assert_eq!(settings.servers["files"].timeout.as_secs(), 30);
    assert_eq!(settings.servers["web"].timeout.as_secs(), 600);
    assert_eq!(http(&settings.servers["old"]).transport, HttpTransport::Sse);
    assert_eq!(
        warnings,
        [
            "mcp.yaml:3: alwaysAllow is a setting of MCP clients: the gateway ignores it",
            "mcp.yaml:3: alwaysLoad is a setting of MCP clients: the gateway ignores it",
            "mcp.yaml:4: trust is a setting of MCP clients: the gateway ignores it",
            "mcp.yaml:4: timeout: 600000 is read as milliseconds; write 600000ms",
        ]
    );
}

#[test]
fn polis_files_are_read_with_a_warning_for_each_mapped_key() {
    let text = r#"
version: "1.0"
server: { interceptor_addr: ":8090", mcp_server_addr: "127.0.0.1:8091", shutdown_timeout: 20s }
policies:
  bundles: [{ id: g, path: /policies/mcp, entrypoint: mcp/authz }]
tools:
  - { name: filesystem, command: [npx, -y, server, /workspace], runtime: { type: local }, env: ["A=b=c"], description: Files }
  - { name: data-analyzer, command: [python, analyze.py], runtime: { type: e2b, template: data-science-v1, timeout: 300s } }
metrics: { enabled: true, path: /metrics }
logging: { level: debug, format: text }
secrets: { e2b_api_key: "${E2B_API_KEY:-}" }
"#;
    let (settings, polis, warnings) = read_with(text, &[]).unwrap();
    let listen: Vec<_> = polis.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["0.0.0.0:8090", "127.0.0.1:8091"]);
    assert_eq!(polis.shutdown_timeout.unwrap().as_secs(), 20);
    assert_eq!(
        (polis.log_level.as_deref(), polis.log_json),
        (Some("debug"), Some(false))
    );
    let files = stdio(&settings.servers["filesystem"]);
    assert_eq!(texts(&files.command), ["npx", "-y", "server", "/workspace"]);
    assert_eq!((&*files.env[0].0, files.env[0].1.0.as_str()), ("A", "b=c"));
    let analyzer = &settings.servers["data-analyzer"];
    assert_eq!(analyzer.timeout.as_secs(), 300);
    assert!(
        matches!(&analyzer.kind, ServerKind::E2b(e2b) if e2b.template.as_deref() == Some("data-science-v1"))
    );
    let keys: Vec<_> = warnings
        .iter()
        .map(|warning| warning.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(
        keys,
        [
            "interceptor_addr",
            "mcp_server_addr",
            "shutdown_timeout",
            "logging",
            "metrics",
            "secrets",
            "tools"
        ]
    );
}
