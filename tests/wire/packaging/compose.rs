//! The compose files: isolation of the sandboxes, and privileges of the proxy.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Command;

use ipnet::Ipv4Net;
use serde_json::{Value, json};
use testkit::each_row;

use super::{assert_known, read, root, run, texts};
use crate::support::yaml;

const FILES: [&str; 2] = ["docker-compose.yml", "tests/docker-compose.test.yml"];
/// Keys of the Compose Specification that a service may have here.
const SERVICE: &[&str] = &[
    "build",
    "cap_drop",
    "command",
    "depends_on",
    "dns",
    "env_file",
    "environment",
    "healthcheck",
    "image",
    "init",
    "networks",
    "ports",
    "read_only",
    "restart",
    "security_opt",
    "stop_grace_period",
    "sysctls",
    "tmpfs",
    "ulimits",
    "volumes",
];
/// Keys that a network may have here.
const NETWORK: &[&str] = &["driver_opts", "internal", "ipam"];
/// Keys that a health check may have here.
const HEALTHCHECK: &[&str] = &["interval", "retries", "start_period", "test", "timeout"];

/// Each file with the service name of its sandbox.
fn sandboxes() -> [(&'static str, &'static str); 2] {
    [(FILES[0], "sandbox"), (FILES[1], "test-sandbox")]
}

fn service(file: &str, name: &str) -> Value {
    yaml(&read(file))["services"][name].clone()
}

fn address(service: &Value, network: &str) -> Ipv4Addr {
    let address = &service["networks"][network]["ipv4_address"];
    address.as_str().unwrap().parse().unwrap()
}

/// Maps the source of each volume of a service to its mount point and to whether it is read-only.
fn volumes(service: &Value) -> BTreeMap<&str, (&str, bool)> {
    let volumes = texts(&service["volumes"]).into_iter();
    volumes
        .map(|volume| {
            let parts: Vec<_> = volume.split(':').collect();
            (parts[0], (parts[1], parts.get(2) == Some(&"ro")))
        })
        .collect()
}

#[test]
fn compose_files_have_known_keys_and_only_defined_networks_and_volumes() {
    each_row(FILES, |file| {
        let compose = yaml(&read(file));
        assert_known(file, &compose, &["name", "networks", "services", "volumes"]);
        for (name, network) in compose["networks"].as_object().unwrap() {
            assert_known(name, network, NETWORK);
        }
        for (name, service) in compose["services"].as_object().unwrap() {
            assert_known(name, service, SERVICE);
            if service.get("healthcheck").is_some() {
                assert_known(name, &service["healthcheck"], HEALTHCHECK);
            }
            for (network, place) in service["networks"].as_object().unwrap() {
                let defined = &compose["networks"][network];
                assert!(defined.is_object(), "{name}: {network}");
                if place.get("ipv4_address").is_some() {
                    let subnet = defined["ipam"]["config"][0]["subnet"].as_str().unwrap();
                    let subnet: Ipv4Net = subnet.parse().unwrap();
                    assert!(
                        subnet.contains(&address(service, network)),
                        "{name}: {subnet}"
                    );
                }
            }
            for source in volumes(service)
                .keys()
                .filter(|name| !name.starts_with('.'))
            {
                assert!(compose["volumes"].get(source).is_some(), "{name}: {source}");
            }
        }
    });
}

#[test]
fn the_sandbox_of_the_compose_file_is_only_on_an_isolated_internal_network() {
    let compose = yaml(&read(FILES[0]));
    let sandbox = &compose["services"]["sandbox"];
    let networks: Vec<_> = sandbox["networks"].as_object().unwrap().keys().collect();
    assert_eq!(networks, ["sandboxes"]);
    let network = &compose["networks"]["sandboxes"];
    assert_eq!(network["internal"], "true");
    // Without this option, the sandbox could reach the host's services at the bridge's address.
    let isolated = "com.docker.network.bridge.gateway_mode_ipv4";
    assert_eq!(network["driver_opts"][isolated], "isolated");
    // Engines before 28 ignore that option.
    let inhibit = "com.docker.network.bridge.inhibit_ipv4";
    assert_eq!(network["driver_opts"][inhibit], "true");
    assert!(sandbox.get("ports").is_none() && sandbox.get("network_mode").is_none());
}

#[test]
fn a_sandbox_knows_the_proxy_by_its_fixed_address_and_by_the_service_name() {
    each_row(sandboxes(), |(file, name)| {
        let (proxy, sandbox) = (service(file, "unified-proxy"), service(file, name));
        let network = sandbox["networks"]
            .as_object()
            .unwrap()
            .keys()
            .next()
            .unwrap();
        let nameserver = address(&proxy, network).to_string();
        assert_eq!(sandbox["dns"], json!([nameserver]));
        let environment = &sandbox["environment"];
        for variable in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            assert_eq!(
                environment[variable], "http://unified-proxy:8080",
                "{variable}"
            );
        }
        for variable in ["no_proxy", "NO_PROXY"] {
            let expected = "localhost,127.0.0.1,::1,unified-proxy";
            assert_eq!(environment[variable], expected, "{variable}");
        }
        // Sandboxes reach the MCP gateway on its default port, directly instead of through the
        // proxy.
        let gateway = "http://unified-proxy:8090/mcp";
        assert_eq!(environment["UNIFIED_PROXY_MCP_URL"], gateway);
        assert_eq!(
            sandbox["depends_on"]["unified-proxy"]["condition"],
            "service_healthy"
        );
    });
}

#[test]
fn a_sandbox_mounts_only_the_certificates_and_drops_capabilities() {
    each_row(sandboxes(), |(file, name)| {
        let sandbox = service(file, name);
        let expected = BTreeMap::from([("proxy-certs", ("/certs", true))]);
        assert_eq!(volumes(&sandbox), expected);
        let dropped = json!(["NET_RAW", "NET_ADMIN", "SYS_CHROOT", "MKNOD"]);
        assert_eq!(sandbox["cap_drop"], dropped);
        assert!(
            sandbox.get("env_file").is_none(),
            "only the proxy gets the secrets"
        );
    });
}

#[test]
fn the_proxy_runs_without_capabilities_on_a_read_only_root_and_keeps_its_state() {
    each_row(FILES, |file| {
        let proxy = service(file, "unified-proxy");
        assert_eq!(proxy["cap_drop"], json!(["ALL"]));
        assert_eq!(proxy["security_opt"], json!(["no-new-privileges:true"]));
        assert_eq!(
            proxy["sysctls"]["net.ipv4.ip_unprivileged_port_start"],
            "53"
        );
        assert_eq!(proxy["read_only"], "true");
        assert_eq!(proxy["stop_grace_period"], "20s");
        let volumes = volumes(&proxy);
        assert_eq!(volumes["proxy-data"], ("/var/lib/unified-proxy", false));
        assert_eq!(volumes["proxy-socket"], ("/var/run/proxy", false));
        assert_eq!(volumes["proxy-certs"], ("/certs", false));
        assert!(
            volumes
                .values()
                .any(|place| *place == ("/etc/unified-proxy", true))
        );
        let health = &proxy["healthcheck"];
        assert_eq!(
            health["test"],
            json!(["CMD", "/usr/bin/unified-proxy", "health"])
        );
        for (key, value) in [
            ("interval", "5s"),
            ("timeout", "3s"),
            ("retries", "3"),
            ("start_period", "15s"),
        ] {
            assert_eq!(health[key], value, "{key}");
        }
    });
    let compose = yaml(&read(FILES[0]));
    for (name, service) in compose["services"].as_object().unwrap() {
        assert_eq!(service["restart"], "unless-stopped", "{name}");
    }
}

#[test]
fn the_test_set_up_publishes_its_ports_on_loopback() {
    let proxy = service(FILES[1], "unified-proxy");
    let ports = json!(["127.0.0.1:18080:8080/tcp", "127.0.0.1:1053:53/udp"]);
    assert_eq!(proxy["ports"], ports);
}

#[test]
fn the_configuration_of_the_test_set_up_is_valid() {
    let mut check = Command::new(env!("CARGO_BIN_EXE_unified-proxy"));
    check.args(["check", "--config", "tests/docker-compose.test"]);
    let (code, output) = run(check.current_dir(root()));
    assert_eq!(code, 0, "{output}");
}
