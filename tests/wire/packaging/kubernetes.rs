//! The Kubernetes example: the fields of its objects, its isolation, and the registrar's script.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{assert_known, program, read, texts};
use crate::support::{Origin, Proxy, SOON, Setup, eventually, yaml, yaml_documents};

const FILES: [&str; 3] = ["proxy.yaml", "registrar.yaml", "sandbox.yaml"];
const ANNOTATION: &str = "unified-proxy.example.com/repos";

fn objects() -> Vec<Value> {
    let files = FILES
        .iter()
        .map(|file| read(&format!("packaging/kubernetes/{file}")));
    files.flat_map(|text| yaml_documents(&text)).collect()
}

fn object(kind: &str, name: &str) -> Value {
    let found = objects()
        .into_iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Panics if a value has a field that `known` lacks. A string in `known` is the name of an entry of
/// `all`, or `any`, which accepts every value.
fn assert_fields(place: &str, value: &Value, known: &Value, all: &Value) {
    match known {
        Value::String(name) if name == "any" => {}
        Value::String(name) => assert_fields(place, value, &all[name], all),
        Value::Array(items) => {
            let values = value
                .as_array()
                .unwrap_or_else(|| panic!("{place}: {value}"));
            for (index, value) in values.iter().enumerate() {
                assert_fields(&format!("{place}[{index}]"), value, &items[0], all);
            }
        }
        known => {
            let fields = known.as_object().unwrap();
            let names: Vec<_> = fields.keys().map(String::as_str).collect();
            assert_known(place, value, &names);
            for (name, value) in value.as_object().unwrap() {
                assert_fields(&format!("{place}.{name}"), value, &fields[name], all);
            }
        }
    }
}

#[test]
fn kubernetes_objects_have_known_fields() {
    let known = yaml(&read("tests/packaging/kubernetes-fields.yaml"));
    let objects = objects();
    assert_eq!(objects.len(), 11);
    for object in objects {
        let kind = object["kind"].as_str().unwrap();
        assert_fields(kind, &object, &known[kind], &known);
    }
}

#[test]
fn the_kubernetes_network_policy_allows_sandboxes_only_the_ports_of_the_proxy() {
    let policy = object("NetworkPolicy", "proxy-only")["spec"].clone();
    assert_eq!(
        policy["podSelector"],
        json!({}),
        "the policy selects every pod of the namespace"
    );
    assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(policy["ingress"], json!([]));
    let egress = policy["egress"].as_array().unwrap();
    let [rule] = &egress[..] else {
        panic!("{egress:?}")
    };
    let [to] = &rule["to"].as_array().unwrap()[..] else {
        panic!("{rule}")
    };

    let daemons = object("DaemonSet", "unified-proxy");
    let labels = &daemons["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&to["podSelector"]["matchLabels"], labels);
    assert_eq!(&daemons["spec"]["selector"]["matchLabels"], labels);
    let service = object("Service", "unified-proxy")["spec"].clone();
    assert_eq!(&service["selector"], labels);
    assert_eq!(
        service["internalTrafficPolicy"], "Local",
        "another node's proxy does not know the pod"
    );

    let ports = |ports: &Value, key: &str| {
        let ports = ports.as_array().unwrap().iter();
        let mut ports: Vec<_> = ports
            .map(|port| (port[key].to_string(), port["protocol"].to_string()))
            .collect();
        ports.sort();
        ports
    };
    let allowed = ports(&rule["ports"], "port");
    let proxy = &daemons["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(allowed, ports(&proxy["ports"], "containerPort"));
    assert_eq!(allowed, ports(&service["ports"], "port"));
    let accepted = object("NetworkPolicy", "unified-proxy")["spec"]["ingress"][0]["ports"].clone();
    assert_eq!(
        ports(&accepted, "port"),
        ports(&proxy["ports"], "name"),
        "the policy of the proxy names the ports of its container"
    );
}

#[test]
fn kubernetes_sandboxes_resolve_names_at_the_service_and_have_no_token_or_socket() {
    let sandbox = object("Pod", "sandbox")["spec"].clone();
    let service = object("Service", "unified-proxy")["spec"]["clusterIP"].clone();
    assert_eq!(sandbox["dnsPolicy"], "None");
    assert_eq!(sandbox["dnsConfig"]["nameservers"], json!([service]));
    assert_eq!(
        sandbox["hostAliases"],
        json!([{ "ip": service, "hostnames": ["unified-proxy"] }])
    );
    let environment = &sandbox["containers"][0]["env"];
    let gateway =
        json!({ "name": "UNIFIED_PROXY_MCP_URL", "value": "http://unified-proxy:8090/mcp" });
    assert!(
        environment.as_array().unwrap().contains(&gateway),
        "{environment}"
    );
    assert_eq!(sandbox["automountServiceAccountToken"], "false");
    let mounted = sandbox["volumes"].as_array().unwrap();
    assert!(
        mounted
            .iter()
            .all(|volume| volume.get("configMap").is_some()),
        "{mounted:?}"
    );
    let wait = sandbox["initContainers"][0]["command"].to_string();
    assert!(wait.contains("domain_not_allowed"), "{wait}");
}

#[test]
fn the_containers_of_the_daemon_set_have_no_capability_and_only_the_registrar_has_a_token() {
    let daemons = object("DaemonSet", "unified-proxy")["spec"]["template"]["spec"].clone();
    assert_eq!(daemons["securityContext"]["runAsNonRoot"], "true");
    let containers = daemons["containers"].as_array().unwrap();
    for container in containers {
        let context = &container["securityContext"];
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(context["allowPrivilegeEscalation"], "false");
        let mounts = container["volumeMounts"].as_array().unwrap();
        let has_token = mounts.iter().any(|mount| mount["name"] == "api-token");
        assert_eq!(has_token, container["name"] == "registrar");
    }
    let role = object("Role", "unified-proxy-registrar")["rules"][0].clone();
    assert_eq!(
        texts(&role["verbs"]).into_iter().collect::<Vec<_>>(),
        ["get", "list"]
    );
    assert_eq!(role["resources"], json!(["pods"]));
}

/// The registrar's script in a process that is killed on drop.
struct Registrar(Child);

impl Registrar {
    /// Starts the script for a proxy, with a `kubectl` that prints the file `pods.json` of the
    /// proxy's directory.
    fn start(proxy: &Proxy) -> Self {
        let directory = proxy.path("registrar");
        fs::create_dir(&directory).unwrap();
        let script = object("ConfigMap", "unified-proxy-registrar")["data"]["registrar.sh"].clone();
        // The script keeps files in /tmp, which is private in a pod but not here, so the test
        // replaces the directory.
        let script = script
            .as_str()
            .unwrap()
            .replace("/tmp/", &format!("{}/", directory.display()));
        fs::write(directory.join("registrar.sh"), script).unwrap();
        let kubectl = directory.join("kubectl");
        fs::write(
            &kubectl,
            format!("#!/bin/sh\ncat '{}'\n", proxy.path("pods.json").display()),
        )
        .unwrap();
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        let child = Command::new("sh")
            .arg(directory.join("registrar.sh"))
            .env("PATH", path)
            .envs([
                ("NODE", "node"),
                ("NAMESPACE", "sandboxes"),
                ("INTERVAL", "0.1"),
            ])
            .env("SOCKET", proxy.path("api.sock"))
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Replaces the file in one step, so that the script never reads half of it.
fn write_pods(path: &Path, pods: &Value) {
    let whole = path.with_extension("new");
    fs::write(&whole, json!({ "items": pods }).to_string()).unwrap();
    fs::rename(whole, path).unwrap();
}

fn pod(uid: &str, address: Option<&str>, repos: &str) -> Value {
    let mut pod =
        json!({ "metadata": { "uid": uid, "annotations": { ANNOTATION: repos } }, "status": {} });
    if let Some(address) = address {
        pod["status"]["podIP"] = address.into();
    }
    pod
}

/// Id, address and number of repositories of each registered container.
fn registered(proxy: &Proxy) -> Vec<(String, String, usize)> {
    let listed = proxy.admin("GET", "/internal/containers", None).json();
    let containers = listed["containers"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut containers: Vec<_> = containers
        .map(|one| {
            (
                text(&one["container_id"]),
                text(&one["container_ip"]),
                one["repos"].as_array().unwrap().len(),
            )
        })
        .collect();
    containers.sort();
    containers
}

#[test]
fn the_registrar_registers_pods_that_have_an_address_and_unregisters_those_that_ended() {
    if program("jq").is_none() || program("curl").is_none() {
        return;
    }
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.containers.clear();
    let proxy = setup.start();
    let pods = proxy.path("pods.json");
    let one = |address, repos| ("one".to_owned(), String::from(address), repos);
    write_pods(
        &pods,
        &json!([
            pod("one", Some("127.0.0.1"), "o/a o/b"),
            pod("two", None, "")
        ]),
    );
    let _registrar = Registrar::start(&proxy);

    eventually("the pod with an address is registered", SOON, || {
        registered(&proxy) == [one("127.0.0.1", 2)]
    });
    assert_eq!(proxy.get("http://plain.example.com/echo", &[]).status, 200);

    write_pods(
        &pods,
        &json!([
            pod("one", Some("127.0.0.1"), "o/a o/b"),
            pod("two", Some("127.0.0.2"), "")
        ]),
    );
    eventually("the second pod is registered", SOON, || {
        registered(&proxy).len() == 2
    });

    write_pods(&pods, &json!([pod("two", Some("127.0.0.2"), "")]));
    eventually("the ended pod is unregistered", SOON, || {
        registered(&proxy) == [("two".to_owned(), "127.0.0.2".to_owned(), 0)]
    });
    let reply = proxy.get("http://plain.example.com/echo", &[]);
    reply.assert_denied(403, "unknown_source", "Unknown source IP");

    // If kubectl prints invalid JSON, the registrar unregisters no container.
    fs::write(&pods, "not JSON").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(registered(&proxy).len(), 1);
}
