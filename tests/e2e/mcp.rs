//! MCP clients in a sandbox of `scripts/sandbox` and in the sandbox of the compose file.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::{Fixture, ran};
use crate::machine::Machine;
use crate::mcp_servers::{CLIENT, McpServers, assert_reached};
use crate::summary::can_run;
use crate::support::{Origin, Setup, yaml};

/// A fixture whose proxy has an MCP gateway with servers.
pub fn with_servers() -> (Fixture, McpServers) {
    with_changed(|_| ())
}

fn with_changed(change: impl FnOnce(&mut Setup)) -> (Fixture, McpServers) {
    let mut config = None;
    let fixture = Fixture::with(|setup| {
        config = Some(setup.dir().join("config"));
        change(setup);
    });
    let servers = fixture.host.run(McpServers::start);
    servers.mount(&config.unwrap());
    let reloaded = fixture.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    (fixture, servers)
}

#[test]
fn a_client_in_a_sandbox_finds_the_gateway_in_its_environment() {
    if !can_run("a_client_in_a_sandbox_finds_the_gateway_in_its_environment") {
        return;
    }
    let (fixture, _servers) = with_servers();
    let sandbox = fixture.up("a", &[]);
    assert_reached(&fixture.exec("a", CLIENT).ok());
    // The gateway identifies the sandbox by its address.
    let call = json!({ "container_id": "a", "kind": "mcp", "method": "tools/call" });
    fixture.proxy.audited(call);
    // Login shells have the variable and the program.
    let login = "env -i HOME=$HOME bash -lc 'echo $UNIFIED_PROXY_MCP_URL; unified-proxy mcp list'";
    let said = fixture.exec("a", login).ok();
    assert!(
        said.starts_with(&format!("http://{}:8090/mcp\n", sandbox.proxy)),
        "{said}"
    );
    assert!(said.contains("notes_echo"), "{said}");
    // Clients reach the gateway by its host name too, without the proxy.
    let named = "unified-proxy mcp list --url http://unified-proxy:8090/mcp";
    assert!(fixture.exec("a", named).ok().contains("notes_echo"));
}

/// Any process of a sandbox can end it, and a later one can have the files that it wrote.
#[test]
fn the_end_of_a_sandbox_does_not_lower_its_level() {
    if !can_run("the_end_of_a_sandbox_does_not_lower_its_level") {
        return;
    }
    let (fixture, _servers) = with_servers();
    let file = fixture.proxy.path("config/mcp.yaml");
    let mut settings: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    settings["mcpServers"]["notes"]["classification"] = json!("Confidential");
    fs::write(&file, settings.to_string()).unwrap();
    let reloaded = fixture.proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());

    let call = "unified-proxy mcp call notes_echo '{\"text\":\"x\"}'";
    let level = |name| fixture.registration(name).unwrap()["security_level"].clone();
    for (name, ends_by_itself) in [("a", true), ("b", false)] {
        if ends_by_itself {
            fixture
                .sandbox(&["up", name, "--while", "bash", "-c", call])
                .ok();
        } else {
            fixture.up(name, &[]);
            assert_eq!(level(name), "Public");
            fixture.exec(name, call).ok();
            fixture.sandbox(&["down", name]).ok();
        }
        assert_eq!(fixture.registration(name), None);
        fixture.up(name, &[]);
        assert_eq!(level(name), "Confidential", "{name}");
        fixture.sandbox(&["down", name]).ok();
        let path = format!("/internal/containers/{name}");
        assert_eq!(fixture.proxy.admin("DELETE", &path, None).status, 200);
        fixture.up(name, &[]);
        assert_eq!(level(name), "Public", "{name}");
    }
}

#[test]
fn a_gateway_on_another_port_is_found_and_no_variable_names_an_unreachable_one() {
    if !can_run("a_gateway_on_another_port_is_found_and_no_variable_names_an_unreachable_one") {
        return;
    }
    let (fixture, _servers) = with_changed(|setup| {
        setup.proxy["listen"]["mcp"] = json!(["0.0.0.0:9090"]);
    });
    let sandbox = fixture.up("a", &[]);
    assert_reached(&fixture.exec("a", CLIENT).ok());
    let rules = fixture
        .host
        .sh(&format!("nft list table netdev {}", sandbox.device));
    assert!(
        rules.contains("tcp dport { 53, 8080, 9090 } accept"),
        "{rules}"
    );

    for (listeners, warned) in [(json!(["127.0.0.1:8090"]), true), (json!([]), false)] {
        let fixture = Fixture::with(|setup| setup.proxy["listen"]["mcp"] = listeners);
        let up = fixture.sandbox(&["up", "a"]);
        assert_eq!(up.code, Some(0), "{up:?}");
        let said = "the MCP gateway listens on 127.0.0.1:8090, which no sandbox can reach";
        assert_eq!(up.stderr.contains(said), warned, "{up:?}");
        assert_eq!(
            fixture
                .exec("a", "echo ${UNIFIED_PROXY_MCP_URL-none}")
                .ok()
                .trim(),
            "none"
        );
        let sandbox = fixture.find("a");
        let rules = fixture
            .host
            .sh(&format!("nft list table netdev {}", sandbox.device));
        assert!(rules.contains("tcp dport { 53, 8080 } accept"), "{rules}");
    }
}

/// Network namespaces stand in for the containers, with the addresses, names and variables of the
/// compose file.
#[test]
fn a_client_in_the_sandbox_of_the_compose_file_reaches_the_gateway() {
    if !can_run("a_client_in_the_sandbox_of_the_compose_file_reaches_the_gateway") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = yaml(&fs::read_to_string(root.join("docker-compose.yml")).unwrap());
    let of = |service: &str| file["services"][service].clone();
    let address = |service: &str| -> Ipv4Addr {
        let address = of(service)["networks"]["sandboxes"]["ipv4_address"].clone();
        address.as_str().unwrap().parse().unwrap()
    };
    let (proxy, inside) = (address("unified-proxy"), address("sandbox"));
    let (appliance, sandbox) = (Machine::new(), Machine::new());
    appliance.sh(&format!(
        "ip link add eth0 type veth peer name eth0 netns {}
         ip address add {proxy}/24 dev eth0
         ip link set eth0 up",
        sandbox.pid()
    ));
    sandbox.sh(&format!(
        "ip address add {inside}/24 dev eth0; ip link set eth0 up"
    ));

    let origin = appliance.run(Origin::start);
    let servers = appliance.run(McpServers::start);
    let mut setup = Setup::new(&origin);
    setup.containers = vec![(inside.to_string(), "sandbox".to_owned())];
    // The compose file mounts the shipped proxy.yaml, so the proxy has the default addresses.
    let shipped = yaml(&fs::read_to_string(root.join("config/proxy.yaml")).unwrap());
    assert_eq!(shipped.get("listen"), None, "`listen` in proxy.yaml");
    let admin = setup.proxy["listen"]["admin"].clone();
    setup.proxy["listen"] = json!({ "admin": admin });
    servers.mount(&setup.dir().join("config"));
    let gateway = appliance.run(|| setup.start());

    let hosts = gateway.path("hosts");
    fs::write(
        &hosts,
        format!("127.0.0.1 localhost\n{proxy} unified-proxy\n"),
    )
    .unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_unified-proxy"))
        .parent()
        .unwrap();
    let with_names = format!("mount --bind {} /etc/hosts && exec bash", hosts.display());
    let mut client = Command::new("unshare");
    client.args([
        "--mount",
        "sh",
        "-c",
        &format!("{with_names} -c \"$0\""),
        CLIENT,
    ]);
    client
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", binary.display()));
    let variables = of("sandbox")["environment"].clone();
    let variables = variables.as_object().unwrap().iter();
    client.envs(variables.map(|(name, value)| (name, value.as_str().unwrap().to_owned())));
    assert_reached(&ran(sandbox.run(|| client.output().unwrap())).ok());
    let call = json!({ "container_id": "sandbox", "kind": "mcp", "method": "tools/call" });
    let line: Value = gateway.audited(call);
    assert_eq!(
        line["client"]
            .as_str()
            .map(|peer| peer.starts_with(&inside.to_string())),
        Some(true),
        "{line}"
    );
}
