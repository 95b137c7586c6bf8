//! Files, processes and addresses that a confined MCP server can see and reach.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use addons::contract::Host;
use addons::mcp::HiddenValue;
use serde_json::{Value, json};
use unified_proxy::mcp::*;

use super::fixture::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_server_sees_no_file_of_the_proxy_and_reaches_no_address() {
    let shown = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(shown.path()).unwrap();
    let (read, write) = (root.join("read"), root.join("write"));
    std::fs::create_dir(&read).unwrap();
    std::fs::create_dir(&write).unwrap();
    let _socket = UnixListener::bind(read.join("other.sock")).unwrap();
    let mut settings = python("legacy");
    // With this setting, the server could reach every Unix socket that it sees.
    settings.unix_sockets = true;
    settings.env = vec![("API_KEY".to_owned(), HiddenValue("k".to_owned().into()))];
    settings.read = vec![read.clone()];
    settings.write = vec![write.clone()];
    let fixture = Fixture::new(vec![mounted("t", settings)]);
    let admin = fixture.state.join("api.sock");
    let _admin = UnixListener::bind(&admin).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let pooled = fixture.session("t", Version::V2025_11_25).await.unwrap();
    let state = fixture.state.to_str().unwrap();
    let registry = fixture.state.join("registry.db");
    let target = env!("CARGO_MANIFEST_DIR");
    let asked = json!({
        "paths": [state, registry, target, "/root/.cargo", "/etc/shadow", read, write],
        "writes": [read.join("new"), write.join("new"), "/etc/new", "/usr/bin/new", "/tmp/new"],
        "addresses": [
            ["unix", admin], ["unix", read.join("other.sock")], ["tcp", ["127.0.0.1", port]],
            ["tcp", ["127.0.0.1", 3128]], ["tcp", ["127.0.0.1", 8090]], ["tcp", ["192.0.2.1", 80]],
        ],
    });
    let seen = fixture.call(&pooled, "probe", asked).await.unwrap();
    let only = |key: &str| -> Vec<String> {
        let list = seen[key].as_array().unwrap().iter();
        list.map(|path| path.as_str().unwrap().to_owned()).collect()
    };
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let visible = only("sees");
    assert!(visible.contains(&text(&read)) && visible.contains(&text(&write)));
    assert!(!visible.contains(&text(&registry)), "{visible:?}");
    assert!(!visible.contains(&target.to_owned()), "{visible:?}");
    assert_eq!(
        only("writes"),
        [text(&write.join("new")), "/tmp/new".to_owned()]
    );
    assert_eq!(seen["reaches"], json!([]));
    assert_eq!(seen["no_new_privs"], "1");
    assert_eq!(seen["seccomp"], "2");
    assert_eq!(seen["capabilities"], "0000000000000000");
    assert!(only("processes").len() <= 3, "{:?}", seen["processes"]);
    let environment = seen["environment"].as_object().unwrap();
    assert_eq!(environment["API_KEY"], "k");
    assert!(
        !environment.contains_key("CARGO_MANIFEST_DIR"),
        "{environment:?}"
    );
    assert!(!environment.contains_key("NEXTEST"), "{environment:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_hosts_reaches_the_proxy_under_the_name_of_its_mount() {
    let mut settings = python("legacy");
    settings.hosts = vec![(Host::parse("api.example.com").unwrap(), 443)];
    let fixture = Fixture::new(vec![mounted("t", settings)]);
    let pooled = fixture.session("t", Version::V2025_11_25).await.unwrap();
    let request = "CONNECT api.example.com:443 HTTP/1.1\r\n\r\n";
    let answer = fixture
        .call(&pooled, "proxy", json!({ "request": request }))
        .await;
    assert_eq!(answer.unwrap(), Value::from("mcp:t"));
    let seen = fixture.call(&pooled, "probe", json!({})).await.unwrap();
    assert_eq!(seen["environment"]["HTTPS_PROXY"], "http://127.0.0.1:3128");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_read_setting_names_a_directory_of_the_proxy_is_not_started() {
    let fixture = Fixture::new(Vec::new());
    let mut settings = python("legacy");
    settings.read = vec![fixture.state.clone()];
    let servers = by_name(vec![mounted("t", settings)]);
    fixture.mounts.apply(&servers);
    let refused = fixture.session("t", Version::V2025_11_25).await.map(drop);
    let Err(MountError::CannotStart(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("belongs to the proxy"), "{why}");
}
