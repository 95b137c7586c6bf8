//! The docker back end of `scripts/sandbox`, with a stand-in for `docker` that records its calls.
//! The effects of the calls in a real engine are not tested.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, Sandbox, ran};
use crate::machine::Machine;
use crate::mcp::with_servers;
use crate::mcp_servers::{CLIENT, assert_reached};
use crate::summary::can_run;
use crate::support::{SOON, eventually};

/// A stand-in for `docker`. It creates the bridge of a network as an engine does and records each
/// call. At `docker run`, it also records the host's bridge, firewall rules and registrations.
const STAND_IN: &str = r#"#!/bin/bash
set -u
here="$(dirname "$0")"
printf '%s\n' "$*" >>"$here/calls"
case "$1 $2" in
"network create")
    for word in "$@"; do [[ $word != *bridge.name=* ]] || ip link add "${word#*bridge.name=}" type bridge; done ;;
"network rm") ip link delete "$(cat "$here/bridge")" ;;
run*)
    ip -brief link | grep -o '^sb[0-9a-f]*' >"$here/bridge"
    nft list ruleset >"$here/rules"
    "$UNIFIED_PROXY" container list >"$here/containers" ;;
wait*) until [[ -e "$here/removed" ]]; do sleep 0.02; done ;;
rm*) touch "$here/removed" ;;
esac
"#;

#[test]
fn docker_is_called_with_options_for_a_container_that_reaches_only_the_proxy() {
    if !can_run("docker_is_called_with_options_for_a_container_that_reaches_only_the_proxy") {
        return;
    }
    let (fixture, _servers) = with_servers();
    let dir = fixture.proxy.path("bin");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("docker"), STAND_IN).unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.join("docker"), executable).unwrap();
    // Stands in for the program that the script mounts into the container.
    symlink(
        env!("CARGO_BIN_EXE_unified-proxy"),
        dir.join("unified-proxy"),
    )
    .unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());

    let mut up = fixture.script(&[
        "up",
        "a",
        "--address",
        "198.18.9.2",
        "--backend",
        "docker",
        "--image",
        "image:1",
    ]);
    up.env("PATH", &path);
    let output = fixture.host.run(|| up.output().unwrap());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        said, "a is up at 198.18.9.2; its proxy is http://198.18.9.1:8080\n",
        "{errors}"
    );

    // Before the container started, it was registered and the firewall rules were set.
    assert!(
        read("containers").contains("198.18.9.2"),
        "{}",
        read("containers")
    );
    let sandbox = fixture.find("a");
    let rules = read("rules");
    let allowed = "ip saddr 198.18.9.2 ip daddr 198.18.9.1 tcp dport { 53, 8080, 8090 } accept";
    assert!(rules.contains(allowed), "{rules}");
    assert!(
        rules.contains(&format!("device \"{}\"", sandbox.device)),
        "{rules}"
    );
    let calls = read("calls");
    let create = calls
        .lines()
        .find(|line| line.starts_with("network create"))
        .unwrap();
    for part in [
        "--internal",
        "--subnet 198.18.9.0/30",
        "--gateway 198.18.9.1",
    ] {
        assert!(create.contains(part), "{part} is not in {create}");
    }
    let run = calls.lines().find(|line| line.starts_with("run ")).unwrap();
    for part in [
        "--network a --ip 198.18.9.2 --mac-address 02:5b:c6:12:09:02",
        "--dns 198.18.9.1",
        "--cap-drop NET_RAW",
        "--cap-drop NET_ADMIN",
        "--security-opt no-new-privileges",
        "/certs:/run/unified-proxy/certs:ro",
        "/sandbox-proxy.sh:/etc/profile.d/sandbox-proxy.sh:ro",
        "/resolv.conf:/etc/resolv.conf:ro",
        "/unified-proxy:/usr/local/bin/unified-proxy:ro",
        "--entrypoint sleep image:1 infinity",
    ] {
        assert!(run.contains(part), "{part} is not in {run}");
    }
    assert!(
        !run.contains("api.sock") && !run.contains("privileged "),
        "{run}"
    );
    let environment = run.split_once("--env-file ").unwrap().1;
    let environment = environment.split(' ').next().unwrap().to_owned();
    let profile = fixture.read("a", "sandbox-proxy.sh");
    for line in [
        "export HTTPS_PROXY='http://198.18.9.1:8080'",
        "export UNIFIED_PROXY_HOST='198.18.9.1'",
        "export UNIFIED_PROXY_PORT='8080'",
    ] {
        assert!(profile.contains(line), "{line} is not in {profile}");
    }

    // With the environment that the engine would set, clients reach the MCP gateway. Packets to a
    // port that the rules do not allow are dropped.
    let container = Machine::new();
    attach(&fixture, &container, &sandbox);
    let environment = std::fs::read_to_string(environment).unwrap();
    let inside = |script: &str| {
        let mut client = Command::new("bash");
        client.args(["-c", script]).env_clear().env("PATH", &path);
        let variables = environment.lines().filter_map(|line| line.split_once('='));
        client.envs(variables);
        ran(container.run(|| client.output().unwrap()))
    };
    assert_reached(&inside(CLIENT).ok());
    let other = "timeout 2 bash -c ': </dev/tcp/198.18.9.1/9999' 2>&1; echo $?";
    assert_eq!(inside(other).ok().trim(), "124");

    // After the supervisor is killed, the container is removed before it is unregistered.
    let token = fixture.read("a", "token");
    let supervisor = token.split('.').next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    eventually("a is unregistered", SOON, || {
        fixture.registration("a").is_none()
    });
    assert!(
        read("calls").contains("rm --force a\nnetwork rm a\n"),
        "{}",
        read("calls")
    );
}

/// Connects a network namespace to the bridge, as an engine connects a container.
fn attach(fixture: &Fixture, container: &Machine, sandbox: &Sandbox) {
    let (address, device, proxy) = (sandbox.address, &sandbox.device, sandbox.proxy);
    let settings = fixture.read("a", "settings");
    let mac = settings.split_once(" mac=\"").unwrap().1;
    let mac = mac.split('"').next().unwrap();
    fixture.host.sh(&format!(
        "ip link add port type veth peer name eth0 address {mac} netns {}
         ip link set port master {device} up
         ip address replace {proxy}/30 dev {device}
         ip link set {device} up",
        container.pid()
    ));
    container.sh(&format!(
        "ip address add {address}/30 dev eth0
         ip link set eth0 up
         ip route add default via {proxy}"
    ));
    let inside = "bash -c ': </dev/tcp/198.18.9.1/8080'";
    eventually("the bridge forwards", SOON, || {
        container.run(|| {
            Command::new("sh")
                .args(["-c", inside])
                .status()
                .unwrap()
                .success()
        })
    });
}
