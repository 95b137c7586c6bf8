//! The compose files, and the one of `docs/coding-sidecar.md`, in container engines.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::attempts::{Listeners, reach};
use crate::engine::{Engine, MACHINE, Release, available, write_public};
use crate::machine::Machine;

/// The command that the files' comments and the documents begin with.
const COMPOSE: &str = "docker compose";
const MAIN: &str = "unified-proxy-sandbox-1";

/// A release, if it and compose can be had. Compose is unpacked together with the newer engine.
fn with_compose(test: &str, release: fn() -> Result<Release, String>) -> Option<Release> {
    available(test, Release::newer)?;
    release().ok()
}

/// Starts an engine with compose, and with the images that the files name.
fn start(host: &Machine, release: &Release, stages: &[&str]) -> Engine {
    let engine = Engine::start(host, release);
    engine.add_compose();
    engine.build_images(stages);
    for name in ["unified-proxy", "unified-proxy:test"] {
        engine
            .docker(&["tag", "unified-proxy:appliance", name])
            .ok();
    }
    engine
}

/// Writes a compose file that adds to another one what tests need, and returns its path: the machine's
/// programs for these services, no build, which would download, and a limit of file descriptors that
/// this machine permits.
fn addition(engine: &Engine, services: &[&str], proxy: &str) -> String {
    let volumes: Vec<_> = MACHINE
        .iter()
        .map(|dir| format!("{dir}:{dir}:ro"))
        .collect();
    let binary = env!("CARGO_BIN_EXE_unified-proxy");
    let program = format!("{binary}:/usr/local/bin/unified-proxy:ro");
    let volumes = json!([&volumes[..], &[program]].concat());
    let descriptors = getrlimit(Resource::Nofile)
        .maximum
        .map_or(65_536, |most| most.min(65_536));
    let limits = json!({ "nofile": { "soft": descriptors, "hard": descriptors } });
    let mut text = format!(
        "services:\n  unified-proxy:\n    build: !reset null\n    ulimits: {limits}\n{proxy}"
    );
    for service in services {
        text.push_str(&format!("  {service}: {{ volumes: {volumes} }}\n"));
    }
    let file = engine.dir().join("addition.yml");
    write_public(&file, &text);
    file.display().to_string()
}

/// The commands in the comment at the head of a compose file.
fn commands(file: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let head = text.lines().take_while(|line| line.starts_with('#'));
    let code = head.filter_map(|line| line.strip_prefix("#   "));
    let code = code.collect::<Vec<_>>().join("\n").replace("\\\n", "");
    code.lines().map(str::to_owned).collect()
}

/// Opens connections and sends packets from a container to each address of the host and to each
/// address that another host could have in the container's network. None may arrive.
#[track_caller]
fn assert_isolated(engine: &Engine, host: &Machine, container: &str, subnet: [u8; 3]) {
    let [a, b, c] = subnet;
    let list = "ip -oneline address show scope global | awk '{ print $4 }' | cut -d/ -f1 | sort -u";
    let addresses = host.sh(list);
    let of_host = addresses.lines().map(|address| address.parse().unwrap());
    let first = [IpAddr::V4(Ipv4Addr::new(a, b, c, 1))];
    let targets: Vec<IpAddr> = of_host.chain(first).collect();
    let listeners = Listeners::on(host, false);
    assert_eq!(
        reach(&engine.machine(container), &targets),
        [""; 0],
        "{targets:?}"
    );
    assert_eq!(listeners.received(), [""; 0]);
}

fn the_sandbox_of_the_compose_file_reaches_only_the_proxy(release: &Release) {
    let host = Machine::new();
    let engine = start(&host, release, &["appliance"]);
    let added = addition(&engine, &["sandbox"], "");
    let with = format!("{COMPOSE} --file docker-compose.yml --file {added}");
    for command in commands("docker-compose.yml") {
        engine.sh(&command.replace(COMPOSE, &with)).ok();
    }
    assert_isolated(&engine, &host, MAIN, [172, 30, 53]);
    // In a network without the file's options, the host is reached.
    engine
        .sh(&format!(
            "docker network create --internal plain
             docker run --detach --name plain --network plain {} node:22-bookworm sleep infinity",
            MACHINE
                .map(|dir| format!("--volume {dir}:{dir}:ro"))
                .join(" ")
        ))
        .ok();
    // The first address of the network is the host's.
    let address = "{{.NetworkSettings.Networks.plain.IPAddress}}";
    let address: Ipv4Addr = engine.inspect("plain", address).parse().unwrap();
    let [a, b, c, _] = address.octets();
    let gateway = IpAddr::V4(Ipv4Addr::new(a, b, c, 1));
    let listeners = Listeners::on(&host, false);
    assert!(!reach(&engine.machine("plain"), &[gateway]).is_empty());
    assert!(!listeners.received().is_empty());

    // The proxy knows the sandbox by its address, also when the engine's resolver asks.
    let denied = "curl -sS http://denied.example.org/";
    let said = engine.docker(&["exec", MAIN, "sh", "-c", denied]).ok();
    assert!(said.contains("domain_not_allowed"), "{said}");
    let names = "getent hosts unified-proxy; dig denied.example.org";
    let said = engine.docker(&["exec", MAIN, "sh", "-c", names]).ok();
    assert!(said.starts_with("172.30.53.2 "), "{said}");
    assert!(said.contains("status: NXDOMAIN"), "{said}");
    for dropped in [
        "os.chroot('/')",
        "os.mknod('/tmp/a', 0o20666, os.makedev(1, 1))",
    ] {
        let dropped = engine.docker(&[
            "exec",
            MAIN,
            "python3",
            "-c",
            &format!("import os; {dropped}"),
        ]);
        assert!(dropped.stderr.contains("PermissionError"), "{dropped:?}");
    }
    engine.sh(&format!("{with} restart unified-proxy")).ok();
    let said = engine
        .docker(&["exec", MAIN, "sh", "-c", &format!("sleep 1; {denied}")])
        .ok();
    assert!(
        said.contains("domain_not_allowed"),
        "after a restart: {said}"
    );
}

#[test]
fn the_compose_file_isolates_its_sandbox_in_the_installed_engine() {
    let name = "the_compose_file_isolates_its_sandbox_in_the_installed_engine";
    if let Some(release) = with_compose(name, Release::installed) {
        the_sandbox_of_the_compose_file_reaches_only_the_proxy(&release);
    }
}

#[test]
fn the_compose_file_isolates_its_sandbox_in_a_newer_engine() {
    let name = "the_compose_file_isolates_its_sandbox_in_a_newer_engine";
    if let Some(release) = with_compose(name, Release::newer) {
        the_sandbox_of_the_compose_file_reaches_only_the_proxy(&release);
    }
}

#[test]
fn the_documented_commands_of_the_test_set_up_work_and_a_stopped_proxy_finishes_its_downloads() {
    let name = "the_documented_commands_of_the_test_set_up_work_and_a_stopped_proxy_finishes_its_downloads";
    let Some(release) = with_compose(name, Release::installed) else {
        return;
    };
    let host = Machine::new();
    let engine = start(&host, &release, &["appliance"]);
    let file = "tests/docker-compose.test.yml";
    let added = addition(&engine, &["test-origin", "test-sandbox"], "");
    let with = format!("{COMPOSE} --file {file} --file {added}");
    let mut commands = commands(file);
    let down = commands.pop().unwrap();
    let mut said = String::new();
    for command in &commands {
        let (_, rest) = command.split_once(file).unwrap();
        said = engine.sh(&format!("{with} {rest}")).ok();
    }
    assert_eq!(said, "GET /\n");

    // The published ports, from the host.
    let ports = "curl -sS -x http://127.0.0.1:18080 http://origin.example.com/a
                 dig +short @127.0.0.1 -p 1053 origin.example.com";
    let add =
        format!("{with} exec unified-proxy unified-proxy container add host --ip 172.30.54.1");
    engine.sh(&add).ok();
    assert_eq!(host.sh(ports), "GET /a\n172.30.55.10\n");

    let sandbox = "unified-proxy-test-test-sandbox-1";
    let proxy = "unified-proxy-test-unified-proxy-1";
    let endless = "curl -sSN http://origin.example.com/endless";
    let mut download = Command::new("docker");
    engine.adjust(download.args(["exec", sandbox, "sh", "-c", endless]));
    let mut download = download.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(download.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "GET /endless\n");
    engine.sh(&format!("{with} stop unified-proxy")).ok();
    assert_eq!(engine.inspect(proxy, "{{.State.ExitCode}}"), "0");
    download.wait().unwrap();
    let (_, rest) = down.split_once(file).unwrap();
    engine.sh(&format!("{with} {rest}")).ok();
    assert_eq!(engine.docker(&["ps", "--all", "--quiet"]).ok(), "");
}

#[test]
fn the_tool_container_of_the_documented_compose_file_reaches_only_the_proxy() {
    let name = "the_tool_container_of_the_documented_compose_file_reaches_only_the_proxy";
    let Some(release) = with_compose(name, Release::installed) else {
        return;
    };
    let host = Machine::new();
    let engine = start(&host, &release, &["appliance", "coding-sidecar"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/coding-sidecar.md")).unwrap();
    let (_, document) = document.split_once("### Compose\n").unwrap();
    let block = |language: &str| {
        let (_, rest) = document.split_once(&format!("```{language}\n")).unwrap();
        let (block, _) = rest.split_once("```").unwrap();
        // The folders of the document, below the engine's directory.
        block.replace("/srv/", &format!("{}/", engine.dir().display()))
    };
    // The image that Dockerfile's comment on its stage `coding-sidecar` describes.
    let image = "FROM node:22-bookworm\nCOPY --from=unified-proxy:coding-sidecar /coding-sidecar /usr/local/bin/\n";
    engine
        .sh(&format!(
            "docker build --tag tools.example.com/tools - <<'END'\n{image}END"
        ))
        .ok();
    let config = engine.dir().join("config");
    fs::create_dir(&config).unwrap();
    for file in ["proxy.yaml", "allowlist.yaml"] {
        fs::copy(root.join("config").join(file), config.join(file)).unwrap();
    }
    let socket = json!({ "socketPath": "/var/run/assistant/coding-sidecar.sock" });
    let coding = json!({ "coding_sidecar": socket, "containers": ["sandbox"] });
    let mcp = json!({ "version": 1, "mcpServers": { "coding": coding } });
    write_public(&config.join("mcp.yaml"), &mcp.to_string());
    fs::write(engine.dir().join("tools.yml"), block("yaml")).unwrap();

    // The document's file adds to the mounts of the proxy; the last file replaces the configuration.
    let mount = format!(
        "    volumes: [\"{}:/etc/unified-proxy:ro\"]\n",
        config.display()
    );
    let added = addition(&engine, &["sandbox", "tools"], &mount);
    let files = format!(
        "--file docker-compose.yml --file {}/tools.yml",
        engine.dir().display()
    );
    let with = format!("{COMPOSE} {files} --file {added}");
    let documented = "docker compose --file docker-compose.yml --file tools.yml";
    let commands = block("sh").replace(documented, &with);
    engine.sh(&commands).ok();
    engine
        .sh(&format!(
            "{with} exec unified-proxy unified-proxy container add sandbox --ip 172.30.53.10
             {with} up --detach sandbox"
        ))
        .ok();
    let tools = "unified-proxy-tools-1";

    // The tool works in the tool container, whose commands have the proxy as the only way out.
    let call = |command: &str| {
        let arguments = json!({ "command": command }).to_string();
        engine
            .docker(&[
                "exec",
                MAIN,
                "unified-proxy",
                "mcp",
                "call",
                "coding_bash",
                &arguments,
            ])
            .ok()
    };
    let said = call(
        "id -u; pwd; getent hosts unified-proxy; curl -sS http://denied.example.org/; dig denied.example.org",
    );
    for part in [
        "1000\n",
        "/workspace\n",
        "172.30.56.2 ",
        "domain_not_allowed",
        "status: NXDOMAIN",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert_isolated(&engine, &host, tools, [172, 30, 56]);
    let (agent, tool) = (engine.machine(MAIN), engine.machine(tools));
    for (from, to, address) in [
        (&agent, &tool, "172.30.56.10"),
        (&tool, &agent, "172.30.53.10"),
    ] {
        let listeners = Listeners::on(to, false);
        assert_eq!(reach(from, &[address.parse().unwrap()]), [""; 0]);
        assert_eq!(listeners.received(), [""; 0]);
    }
}
