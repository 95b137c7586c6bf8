//! `unified-proxy dev`, the proxy for processes on its own machine.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use crate::support::{Dev, Origin, Ran, SOON, eventually, free_address};

/// The lines of `dev` that begin with `proxy`, `dns` and `mcp`, each without this word.
fn addresses(dev: &Dev) -> [String; 3] {
    let said = dev.output("stdout");
    let line = |name: &str| {
        let mut lines = said
            .lines()
            .filter_map(|line| line.trim().strip_prefix(name));
        lines.next().unwrap().trim().to_owned()
    };
    ["proxy ", "dns ", "mcp "].map(line)
}

#[test]
fn dev_prints_three_commands_that_work() {
    let origin = Origin::start();
    let dev = Dev::start(&origin, &[], &[]);
    let said = dev.output("stdout");
    let commands: Vec<&str> = said
        .split("Try:\n")
        .nth(1)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .collect();
    assert_eq!(commands.len(), 3, "{said}");
    for (command, expected) in commands.iter().zip(["Half measures", "403", "NXDOMAIN"]) {
        let output = dev.shell(&format!("{{ {command}; }} 2>&1"));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(expected), "{command}: {text}");
    }
    assert_eq!(origin.only().authority, "api.github.com");
}

/// A server whose tool prints the status of a request to its host.
const FETCHER: &str = r#"
import json, sys, urllib.request

for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    if "id" not in message:
        continue
    if method == "initialize":
        result = dict(protocolVersion=params["protocolVersion"], capabilities=dict(tools={}))
        answer = dict(result=result | dict(serverInfo=dict(name="web", version="1")))
    elif method == "tools/list":
        answer = dict(result=dict(tools=[dict(name="fetch", inputSchema=dict(type="object"))]))
    elif method == "tools/call":
        status = urllib.request.urlopen("https://api.github.com/zen", timeout=20).status
        answer = dict(result=dict(content=[dict(type="text", text=f"fetched: {status}")]))
    else:
        answer = dict(error=dict(code=-32601, message="Method not found"))
    print(json.dumps(dict(jsonrpc="2.0", id=message["id"]) | answer), flush=True)
"#;

/// The admin socket of `dev` has a relative path, but sandboxes connect from another directory.
#[test]
fn sandboxes_reach_the_sockets_of_dev() {
    let origin = Origin::start();
    let gateway = free_address();
    let dev = Dev::with_gateway(&origin, gateway);
    let command = ["python3", "-c", FETCHER];
    let web = json!({ "command": command, "hosts": ["api.github.com"] });
    let servers = json!({ "mcpServers": { "web": web } });
    let binary = env!("CARGO_BIN_EXE_unified-proxy");
    let output = dev.shell(&format!(
        "exec 2>&1
        cat >config/mcp.yaml <<'END'\n{servers}\nEND
        curl -sS --unix-socket .unified-proxy/api.sock -X POST http://localhost/internal/reload
        {binary} mcp call web_fetch --url http://{gateway}/mcp
        {binary} run --quiet --server .unified-proxy/api.sock -- \\
            curl -sS -o /dev/null -w 'denied: %{{http_code}}' http://evil.example.com/"
    ));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("fetched: 200"), "{text}");
    assert!(text.contains("denied: 403"), "{text}");
}

#[test]
fn ports_on_the_command_line_override_the_configuration() {
    let origin = Origin::start();
    let [proxy, dns] = [free_address(), free_address()];
    let [proxy_port, dns_port] = [proxy, dns].map(|address| address.port().to_string());
    let ports = [
        "--proxy-port",
        &proxy_port,
        "--dns-port",
        &dns_port,
        "--mcp-port",
        "8091",
    ];
    let dev = Dev::start(&origin, &ports, &[]);
    assert_eq!(
        addresses(&dev),
        [
            format!("http://{proxy}"),
            format!("{dns} (UDP and TCP)"),
            "http://127.0.0.1:8091/mcp".to_owned()
        ]
    );
    let fetched = dev.shell(&format!(
        "curl -sS -x http://{proxy} --cacert .unified-proxy/certs/ca.pem https://api.github.com/zen; \
         dig @127.0.0.1 -p {dns_port} evil.example.com; \
         touch config/allowlist.yaml"
    ));
    let text = String::from_utf8_lossy(&fetched.stdout);
    assert!(
        text.contains("Half measures") && text.contains("NXDOMAIN"),
        "{text}"
    );
    eventually("the configuration is reloaded", SOON, || {
        dev.output("stderr")
            .contains("the configuration was reloaded")
    });
    // The ports in use differ from those in the file. The reload must not report this as a change.
    let log = dev.output("stderr");
    assert!(!log.contains("restart the server to apply it"), "{log}");
}

#[test]
fn dev_prints_the_ports_that_the_kernel_chose_if_the_configured_ports_are_0() {
    let origin = Origin::start();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let dev = Dev::start_with(&origin, (any, any), &[any], &[], &[]);
    let [proxy, dns, mcp] = addresses(&dev);
    for address in [&proxy, &dns, &mcp] {
        assert!(!address.contains(":0"), "{address}");
    }
    assert!(!dns.contains("is taken"), "{dns}");
    let host = mcp.trim_start_matches("http://").trim_end_matches("/mcp");
    TcpStream::connect(host).unwrap();
    let fetched = dev.shell(&format!(
        "curl -sS -x {proxy} --cacert .unified-proxy/certs/ca.pem https://api.github.com/zen"
    ));
    assert!(String::from_utf8_lossy(&fetched.stdout).contains("Half measures"));
}

#[test]
fn dev_moves_dns_to_a_free_port_and_prints_it_if_the_configured_one_is_taken() {
    let origin = Origin::start();
    let (proxy, dns) = (free_address(), free_address());
    let _responder = UdpSocket::bind(dns).unwrap();
    let dev = Dev::start_at(&origin, (proxy, dns), &[], &[]);
    let [_, line, _] = addresses(&dev);
    let taken = format!("(UDP and TCP; port {} is taken)", dns.port());
    assert!(line.ends_with(&taken), "{line}");
    let moved: SocketAddr = line.split(' ').next().unwrap().parse().unwrap();
    assert_ne!(moved, dns);
    let command = format!("dig @127.0.0.1 -p {} evil.example.com", moved.port());
    assert!(dev.output("stdout").contains(&command));
    let answer = dev.shell(&command);
    assert!(String::from_utf8_lossy(&answer.stdout).contains("NXDOMAIN"));
}

#[test]
fn repo_urls_are_registered_as_owner_and_name_without_duplicates() {
    let origin = Origin::start();
    let repos = [
        "--repo",
        "https://github.com/octocat/Hello-World.git",
        "--repo",
        "git@github.com:octocat/Spoon-Knife.git",
        "--repo",
        "OCTOCAT/hello-world",
    ];
    let dev = Dev::start(&origin, &repos, &[]);
    let socket = "--unix-socket .unified-proxy/api.sock";
    let shown = dev.shell(&format!(
        "curl -s {socket} http://localhost/internal/containers/local"
    ));
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(
        shown["repos"],
        json!(["octocat/Hello-World", "octocat/Spoon-Knife"])
    );
}

/// The state directory of `dev` is a relative path, which means another directory to the client.
#[test]
fn the_socket_of_a_container_of_dev_has_an_absolute_path() {
    let origin = Origin::start();
    let dev = Dev::start(&origin, &[], &[]);
    let binary = env!("CARGO_BIN_EXE_unified-proxy");
    let add = format!("{binary} container add boxed --listener unix --json");
    let added: Value = serde_json::from_slice(&dev.shell(&add).stdout).unwrap();
    let socket = added["socket"].as_str().unwrap();
    assert!(socket.starts_with('/'), "{socket}");
    UnixStream::connect(socket).unwrap();
}

#[test]
fn a_missing_configuration_directory_is_an_error_with_its_remedy() {
    let directory = TempDir::new().unwrap();
    each_row(
        [
            ("dev", &[][..], "./config"),
            ("dev", &["--config", "nowhere"], "nowhere"),
            ("serve", &["--config", "nowhere"], "nowhere"),
            ("check", &["--config", "nowhere"], "nowhere"),
        ],
        |(command, arguments, missing)| {
            let ran = Ran::of(
                Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
                    .arg(command)
                    .args(arguments)
                    .current_dir(directory.path()),
            );
            assert_eq!(ran.code, Some(78), "{command} {arguments:?}: {ran:?}");
            for part in [missing, "cannot be read", "--config DIR"] {
                assert!(ran.stderr.contains(part), "{part}: {ran:?}");
            }
        },
    );
}

/// `script` gives `dev` a terminal, and passes on the Ctrl-C that it reads.
#[test]
fn the_log_on_a_terminal_is_text_unless_json_is_configured_and_ctrl_c_stops_dev() {
    each_row(
        [
            ("", false),
            ("logging: { format: text }", false),
            ("logging: { format: json }", true),
        ],
        |(logging, json)| {
            let directory = TempDir::new().unwrap();
            let config = directory.path().join("config");
            fs::create_dir(&config).unwrap();
            let text = format!("version: 1\n{logging}\n");
            fs::write(config.join("proxy.yaml"), text).unwrap();
            let output = directory.path().join("output");
            let [proxy, dns, mcp] = [(); 3].map(|()| free_address().port());
            let binary = env!("CARGO_BIN_EXE_unified-proxy");
            let command = format!(
                "exec timeout --foreground 60 {binary} dev --proxy-port {proxy} --dns-port {dns} --mcp-port {mcp}"
            );
            let mut terminal = Command::new("script")
                .args([
                    "--quiet",
                    "--flush",
                    "--return",
                    "--command",
                    &command,
                    "/dev/null",
                ])
                .current_dir(directory.path())
                .stdin(Stdio::piped())
                .stdout(File::create(&output).unwrap())
                .spawn()
                .unwrap();
            let said = || fs::read_to_string(&output).unwrap();
            eventually("dev says how to watch and to stop it", SOON, || {
                let said = said();
                ["Ctrl-C stops", "`unified-proxy tail`", "dig @"]
                    .iter()
                    .all(|part| said.contains(part))
            });
            assert_eq!(said().contains("{\"timestamp\":"), json, "{}", said());
            assert!(said().contains("listening"), "{}", said());
            let mut keyboard = terminal.stdin.take().unwrap();
            keyboard.write_all(b"\x03").unwrap();
            let ended = terminal.wait().unwrap();
            assert!(ended.success(), "{ended:?}: {}", said());
        },
    );
}

#[test]
fn the_log_that_is_no_terminal_is_json() {
    let origin = Origin::start();
    let dev = Dev::start(&origin, &[], &[]);
    let log = dev.output("stderr");
    assert!(log.lines().all(|line| line.starts_with('{')), "{log}");
}

#[test]
fn inactive_credentials_are_logged_in_one_warning_and_not_again_by_a_reload() {
    let origin = Origin::start();
    let dev = Dev::start(&origin, &[], &[]);
    let log = dev.output("stderr");
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    let inactive = |line: &&&str| line.contains("9 credentials are inactive");
    assert_eq!(warnings.iter().filter(inactive).count(), 1, "{log}");
    // Three of the nine take their secret from this variable.
    assert_eq!(log.matches("GITHUB_TOKEN").count(), 3, "{log}");
    for number in 1..=2 {
        dev.shell("touch config/stray.yaml config/allowlist.yaml");
        eventually("the configuration is reloaded", SOON, || {
            let log = dev.output("stderr");
            log.matches("the configuration was reloaded").count() == number
        });
    }
    let log = dev.output("stderr");
    // A warning that is new is logged once.
    for part in ["9 credentials are inactive", "stray.yaml"] {
        assert_eq!(log.matches(part).count(), 1, "{part}: {log}");
    }
}

#[test]
fn registry_check_with_the_configuration_of_dev_reads_the_registry_of_dev() {
    let origin = Origin::start();
    let dev = Dev::start(&origin, &[], &[]);
    let binary = env!("CARGO_BIN_EXE_unified-proxy");
    let checked = dev.shell(&format!("{binary} registry check --config config"));
    let said = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(
        said,
        "ok: 1 registrations in ./.unified-proxy/registry.db\n"
    );
}

/// In a directory that others can write to, another user may have made the state directory first.
#[test]
fn dev_and_its_clients_trust_no_state_directory_of_another_user() {
    let is_root = rustix::process::geteuid().is_root();
    let rows = [
        (Some(54_321), 0o700, "belongs to another user"),
        (Some(54_321), 0o777, "belongs to another user"),
        (None, 0o777, "can be changed by every user"),
    ];
    for (owner, mode, why) in rows {
        if owner.is_some() && !is_root {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join(".unified-proxy");
        for directory in [&state, &dir.path().join("config")] {
            fs::create_dir(directory).unwrap();
        }
        let _listener = UnixListener::bind(state.join("api.sock")).unwrap();
        fs::set_permissions(&state, PermissionsExt::from_mode(mode)).unwrap();
        chown(&state, owner, owner).unwrap();
        let run = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_unified-proxy"));
            Ran::of(command.args(arguments).current_dir(dir.path()))
        };
        let refused = run(&["dev"]);
        assert_eq!(refused.code, Some(78), "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
        if owner.is_some() {
            let listed = run(&["container", "list"]);
            assert_eq!(listed.code, Some(69), "{listed:?}");
            assert!(
                listed.stderr.contains("/var/run/proxy/api.sock"),
                "{listed:?}"
            );
        }
    }
}
