//! Access to the admin socket, the absence of a TCP port for the admin API, and the command
//! `health`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use rustix::process::geteuid;
use serde_json::json;
use testkit::each_row;

use crate::support::{Origin, Proxy, SOON, Setup};

/// Uid of `nobody` on Linux distributions.
const NOBODY: u32 = 65534;

#[test]
fn the_admin_socket_has_mode_0600() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mode = std::fs::metadata(proxy.path("api.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_peer_whose_uid_is_not_listed_is_refused_even_at_mode_0666() {
    if !geteuid().is_root() {
        // Only root can run curl as another user. The tests of src/admin/socket.rs check the
        // admission by uid without root.
        return;
    }
    each_row(
        [(json!([]), false), (json!([NOBODY]), true)],
        |(uids, passes)| {
            let origin = Origin::start();
            let mut setup = Setup::new(&origin);
            setup.proxy["admin_mode"] = json!("0666");
            setup.proxy["admin_uids"] = uids.clone();
            let open = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(setup.dir(), open).unwrap();
            let proxy = setup.start();
            let socket = proxy.path("api.sock");
            let output = proxy
                .command("curl")
                .uid(NOBODY)
                .current_dir("/")
                .args(["--silent", "--fail", "--max-time", "5", "--unix-socket"])
                .arg(&socket)
                .arg("http://localhost/internal/containers")
                .output()
                .unwrap();
            assert_eq!(
                output.status.success(),
                passes,
                "admin_uids {uids}: {output:?}"
            );
        },
    );
}

#[test]
fn only_the_configured_tcp_ports_listen() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let expected = BTreeSet::from([proxy.address.port(), proxy.dns.port()]);
    assert_eq!(listening(proxy.pid()), expected);
}

#[test]
fn the_admin_api_does_not_answer_on_the_proxys_port() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "/internal/health",
            "/internal/metrics",
            "/internal/containers",
        ],
        |path| {
            let reply = proxy.exchange(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            assert_eq!(reply.status, 400, "{path}: {reply:?}");
        },
    );
}

#[test]
fn the_health_command_succeeds_only_while_the_proxy_runs() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    let socket = proxy.path("api.sock");
    let binary = env!("CARGO_BIN_EXE_unified-proxy");
    let health =
        |proxy: &Proxy| proxy.run(binary, &["health", "--socket", socket.to_str().unwrap()]);
    assert_eq!(health(&proxy).code, Some(0));
    proxy.signal(rustix::process::Signal::KILL);
    proxy.wait(SOON);
    assert_ne!(health(&proxy).code, Some(0));
}

/// The TCP ports on which a process listens, over IPv4 and IPv6.
fn listening(pid: u32) -> BTreeSet<u16> {
    const LISTEN: &str = "0A";
    let inodes: BTreeSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.replace(']', "")))
        .collect();
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            if columns[3] == LISTEN && inodes.contains(columns[9]) {
                let port = columns[1].rsplit(':').next().unwrap();
                ports.insert(u16::from_str_radix(port, 16).unwrap());
            }
        }
    }
    ports
}
