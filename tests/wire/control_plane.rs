//! Access to the admin socket, the absence of a TCP port for the admin API, and the command
//! `health`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;
use serde_json::json;
use tempfile::TempDir;
use testkit::each_row;

use crate::support::{Origin, Proxy, Ran, SOON, Setup};

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

/// Runs a command that cannot reach the admin socket, and returns its error.
fn unreachable(command: &mut Command) -> String {
    let ran = Ran::of(command.args(["container", "list"]));
    assert_eq!(ran.code, Some(69), "{ran:?}");
    ran.stderr
}

#[test]
fn a_command_without_a_server_names_the_socket_that_it_tried_and_the_option_that_chose_it() {
    const DEFAULT: &str = "/var/run/proxy/api.sock";
    let directory = TempDir::new().unwrap();
    let dead = directory.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let dead = dead.to_str().unwrap();
    let missing = ["No such file", "is unified-proxy running?", "--socket PATH"];
    let ended = ["Connection refused", "has ended", "--socket PATH"];
    let mut rows = vec![
        (
            Some("/no/a.sock"),
            "/no/a.sock ($UNIFIED_PROXY_SOCKET)".to_owned(),
            missing,
        ),
        (Some(dead), format!("{dead} ($UNIFIED_PROXY_SOCKET)"), ended),
    ];
    // A server of this machine may have the default socket.
    if !Path::new(DEFAULT).exists() {
        rows.push((None, format!("{DEFAULT} (the default;"), missing));
    }
    each_row(rows, |(variable, tried, parts)| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unified-proxy"));
        command.current_dir(directory.path());
        command.envs(variable.map(|path| ("UNIFIED_PROXY_SOCKET", path)));
        let said = unreachable(&mut command);
        for part in [tried.as_str()].iter().chain(&parts) {
            assert!(said.contains(part), "{part}: {said}");
        }
    });
}

#[test]
fn a_user_who_is_kept_from_the_admin_socket_is_told_by_what_and_how_to_get_in() {
    if !geteuid().is_root() {
        // Only root can run the command as another user.
        return;
    }
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["admin_mode"] = json!("0666");
    let proxy = setup.start();
    let socket = proxy.path("api.sock");
    let directory = socket.parent().unwrap();
    // The state of `dev`, in the working directory.
    let work = TempDir::new().unwrap();
    let state = work.path().join(".unified-proxy");
    std::fs::create_dir(&state).unwrap();
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    set(work.path(), 0o755);
    set(&state, 0o700);
    let closed =
        |directory: &Path| format!("may not search the directory {}:", directory.display());
    let outside = "the server admits root, its own user (0) and `admin_uids`:".to_owned();
    each_row(
        [
            (0o700, 0o666, closed(directory)),
            (0o711, 0o600, "may not write to the socket:".to_owned()),
            (0o711, 0o666, outside),
        ],
        |(directory_mode, socket_mode, why)| {
            set(directory, directory_mode);
            set(&socket, socket_mode);
            let mut command = proxy.command(env!("CARGO_BIN_EXE_unified-proxy"));
            command.uid(NOBODY).gid(NOBODY).current_dir(work.path());
            command.env("UNIFIED_PROXY_SOCKET", &socket);
            let said = unreachable(&mut command);
            for part in [
                why.as_str(),
                "`admin_uids`",
                &format!("let user {NOBODY} in"),
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
        },
    );
    let mut command = proxy.command(env!("CARGO_BIN_EXE_unified-proxy"));
    command.uid(NOBODY).gid(NOBODY).current_dir(work.path());
    let said = unreachable(&mut command);
    assert!(
        said.contains("./.unified-proxy is another user's"),
        "{said}"
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
            "/internal/approvals",
            "/internal/grants",
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
