//! Restarts, faults, shutdown, timeouts, and limits on connections. During a fault, the proxy
//! denies the requests that it cannot judge; after the fault, it serves again.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, geteuid, getrlimit, prlimit, setrlimit};
use serde_json::json;
use testkit::each_row;

use crate::streaming::open_websocket;
use crate::support::{
    Origin, Proxy, SECOND, SOON, Setup, assert_closes, eventually, read_connect_reply, read_reply,
};

const HOST: &str = "api.example.com";

#[test]
fn registrations_survive_a_kill_and_a_restart() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    for number in 2..20 {
        proxy.register(&format!("127.0.1.{number}"), &format!("c{number}"));
    }
    // Kills the proxy right after the last 201: the proxy must write a registration to disk before
    // it responds.
    proxy.crash_and_restart();
    let reply = proxy.admin("GET", "/internal/containers", None).json();
    assert_eq!(reply["containers"].as_array().unwrap().len(), 19);
    assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
    let reply = proxy.curl_from(
        Ipv4Addr::new(127, 0, 1, 7),
        &["http://plain.example.com/echo"],
    );
    assert_eq!(reply.status, 200);
}

#[test]
fn the_ca_survives_a_restart() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    let before = std::fs::read(proxy.ca()).unwrap();
    proxy.crash_and_restart();
    assert_eq!(std::fs::read(proxy.ca()).unwrap(), before);
}

#[test]
fn the_proxy_denies_while_the_registry_is_corrupt_and_does_not_change_its_file() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut tunnel = proxy.tls(HOST);
    let garbage = proxy.damage_registry();
    let health = proxy.health().json();
    assert_eq!(health["status"], "degraded");
    assert_eq!(health["checks"]["registry_accessible"], false);
    let reply = proxy.get("http://plain.example.com/echo", &[]);
    reply.assert_denied(503, "registry_unavailable", "Registry unavailable");
    let (reply, _) = proxy.connect("api.example.com:443");
    reply.assert_connect_denied(503, "registry_unavailable", "Registry unavailable");
    write!(tunnel, "GET /echo HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    let reply = read_reply(&mut tunnel).unwrap();
    reply.assert_denied(503, "registry_unavailable", "Registry unavailable");
    let answer = proxy.dig(Ipv4Addr::LOCALHOST, &[HOST]);
    assert!(answer.contains("status: SERVFAIL"), "{answer}");
    assert!(origin.seen().is_empty());
    assert_eq!(
        std::fs::read(proxy.path("data/registry.db")).unwrap(),
        garbage,
        "the corrupt file was changed"
    );

    proxy.repair_registry();
    assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
}

/// A tmpfs of 1 MiB, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Creates the directory `at` and mounts the tmpfs there. Returns `None` unless the test runs
    /// as root, which mounting needs.
    fn mount(at: &Path) -> Option<Self> {
        if !geteuid().is_root() {
            crate::support::left_out("wire", "a full disk", "only root can mount a small disk");
            return None;
        }
        std::fs::create_dir(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs"]);
        assert!(mount.arg(at).status().unwrap().success());
        Some(Self(at.to_owned()))
    }

    /// Writes a file until the disk is full; returns its path.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let mut file = std::fs::File::create(&ballast).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn on_a_full_disk_only_registrations_are_refused() {
    let origin = Origin::start();
    let setup = Setup::new(&origin);
    let Some(disk) = SmallDisk::mount(&setup.dir().join("data")) else {
        return;
    };
    let mut proxy = setup.start();
    let ballast = disk.fill();
    let body = json!({ "container_ip": "127.0.0.5", "container_id": "new", "repos": [] });
    let register = |proxy: &Proxy| proxy.admin("POST", "/internal/containers", Some(body.clone()));
    let reply = register(&proxy);
    assert_eq!(reply.status, 503, "{}", reply.text());
    let error = reply.json()["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("Registry cannot be written: "), "{error}");
    assert!(error.contains("full"), "{error}");
    // Longer than the interval at which the registry checks its file.
    let until = Instant::now() + Duration::from_secs(3);
    let mut passed = 0;
    while Instant::now() < until || passed < 4 {
        assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
        let answer = proxy.dig(Ipv4Addr::LOCALHOST, &[HOST]);
        assert!(answer.contains("status: NOERROR"), "{answer}");
        assert_eq!(proxy.health().status, 200);
        passed += 1;
    }

    std::fs::remove_file(ballast).unwrap();
    assert_eq!(register(&proxy).status, 201);
    eventually("the audit log is written again", SOON, || {
        proxy.https_get(HOST, "/echo", &[]);
        proxy.health().json()["checks"]["audit_writable"] == true
    });
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    let verify = proxy.cli(&["audit", "verify", "--config", "config"]).ok();
    assert!(verify.contains("hash chain intact"), "{verify}");
    assert!(verify.contains("lost: "), "{verify}");
}

#[test]
fn a_second_server_on_the_same_data_dir_fails_and_names_the_first() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut second = Setup::new(&origin);
    second.proxy["data_dir"] = json!(proxy.path("data"));
    second.write();
    let (code, said) = second.run("serve");
    assert_eq!(code, 69, "{said}");
    let owner = format!("is in use by another server, process {}", proxy.pid());
    assert!(said.contains(&owner), "{said}");
    assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
}

#[test]
fn a_proxy_started_on_a_corrupt_registry_denies_until_a_backup_is_restored() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    let config = ["--config", "config"];
    let registry = |proxy: &Proxy, arguments: &[&str]| {
        proxy.cli(&[&["registry"][..], arguments, &config].concat())
    };
    registry(&proxy, &["backup", "backup.db"]).ok();
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    let file = proxy.path("data/registry.db");
    let garbage = b"this is no database".repeat(500);
    std::fs::write(&file, &garbage).unwrap();

    proxy.start_again();
    eventually("health is degraded", SOON, || {
        let health = proxy.try_admin("GET", "/internal/health", None);
        health.is_ok_and(|health| health.status == 503)
    });
    assert_eq!(proxy.health().json()["status"], "degraded");
    let reply = proxy.get("http://plain.example.com/echo", &[]);
    reply.assert_denied(503, "registry_unavailable", "Registry unavailable");
    let (reply, _) = proxy.connect("api.example.com:443");
    reply.assert_connect_denied(503, "registry_unavailable", "Registry unavailable");
    let body = json!({ "container_ip": "127.0.0.5", "container_id": "new", "repos": [] });
    let reply = proxy.admin("POST", "/internal/containers", Some(body));
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert_ne!(registry(&proxy, &["check"]).code, Some(0));
    assert_eq!(
        std::fs::read(&file).unwrap(),
        garbage,
        "the file was touched"
    );
    origin.assert_untouched();

    registry(&proxy, &["restore", "backup.db"]).ok();
    eventually("health is restored", SOON, || proxy.health().status == 200);
    assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
    registry(&proxy, &["check"]).ok();
}

#[test]
fn the_error_for_an_address_in_use_names_the_address() {
    let origin = Origin::start();
    let setup = Setup::new(&origin);
    let _taken = TcpListener::bind(setup.address).unwrap();
    setup.write();
    let (code, output) = setup.run("serve");
    assert_eq!(code, 69, "{output}");
    assert!(output.contains(&setup.address.to_string()), "{output}");
}

#[test]
fn invalid_yaml_is_reported_with_its_place_and_exit_code_78() {
    let origin = Origin::start();
    let setup = Setup::new(&origin);
    setup.write();
    let file = setup.dir().join("config/allowlist.yaml");
    let bad = "version: 1\ndomains:\n  - a.example.com\n  - \"*.com\"\nbogus: 1\n";
    std::fs::write(file, bad).unwrap();
    each_row(["serve", "check"], |command| {
        let (code, output) = setup.run(command);
        assert_eq!(code, 78, "{command}: {output}");
        for place in ["allowlist.yaml:4", "allowlist.yaml:5", "bogus"] {
            assert!(
                output.contains(place),
                "{command}: {place} is not in {output}"
            );
        }
    });
}

#[test]
fn an_error_names_a_variable_that_is_not_set_and_shows_no_value() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup
        .env
        .push(("SET_SECRET".into(), "sk-live-value".into()));
    setup.credential(json!({
        "name": "a", "hosts": [HOST], "set_headers": { "x-a": "${SET_SECRET}", "x-b": "${NOT_SET}" },
    }));
    setup.write();
    let (code, output) = setup.run("check");
    assert_eq!(code, 78, "{output}");
    assert!(
        output.contains("credentials.yaml:") && output.contains("NOT_SET"),
        "{output}"
    );
    assert!(!output.contains("sk-live-value"), "{output}");
}

#[test]
fn the_error_for_an_unusable_data_directory_names_the_directory() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    let file = setup.dir().join("not-a-directory");
    std::fs::write(&file, "").unwrap();
    setup.proxy["data_dir"] = json!(file);
    setup.write();
    let (code, output) = setup.run("serve");
    assert!([70, 78].contains(&code), "{code}: {output}");
    assert!(output.contains("not-a-directory"), "{output}");
}

#[test]
fn a_damaged_ca_key_is_an_error_and_never_replaced() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    let key = std::fs::read_dir(proxy.path("data"))
        .unwrap()
        .flatten()
        .map(|file| file.path());
    let key = key.filter(|path| path.is_file()).find(|path| {
        let content = std::fs::read(path).unwrap();
        String::from_utf8_lossy(&content).contains("PRIVATE KEY")
    });
    let key = key.unwrap();
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nhalf").unwrap();
    let config = proxy.path("config");
    let binary = env!("CARGO_BIN_EXE_unified-proxy");
    let ran = proxy.run(binary, &["serve", "--config", config.to_str().unwrap()]);
    assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
    let name = key.file_name().unwrap().to_str().unwrap();
    assert!(ran.stderr.contains(name), "{ran:?}");
    assert_eq!(
        std::fs::read(&key).unwrap(),
        b"-----BEGIN PRIVATE KEY-----\nhalf"
    );
}

#[test]
fn sigterm_lets_flows_finish_and_exits_0() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    write!(stream, "GET /slow/1000 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    eventually("the request is under way", SOON, || {
        origin.seen().len() == 1
    });
    proxy.signal(Signal::TERM);
    assert_eq!(read_reply(&mut stream).unwrap().status, 200);
    assert_eq!(proxy.wait(SOON).code(), Some(0));
    assert!(TcpStream::connect(proxy.address).is_err());
}

#[test]
fn sigterm_closes_idle_connections_and_waits_only_for_running_flows() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["shutdown_timeout"] = json!("60s");
    let mut proxy = setup.start();
    let mut idle = proxy.tls(HOST);
    let mut idle_frames = proxy.tls_as(HOST, HOST, &["h2"]).unwrap();
    let mut waiting = proxy.tunnel("api.example.com:443");
    let mut kept = proxy.dial();
    write!(
        kept,
        "GET http://plain.example.com/echo HTTP/1.1\r\nHost: plain.example.com\r\n\r\n"
    )
    .unwrap();
    assert_eq!(read_reply(&mut kept).unwrap().status, 200);
    let mut websocket = proxy.tls(HOST);
    open_websocket(&mut websocket, HOST, "/websocket");
    let mut running = proxy.tls(HOST);
    write!(running, "GET /slow/2000 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    eventually("the request is under way", SOON, || {
        origin.seen().len() == 3
    });
    proxy.signal(Signal::TERM);
    for stream in [&mut idle, &mut idle_frames] {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_closes(&mut kept);
    assert_eq!(read_reply(&mut running).unwrap().status, 200);
    websocket.write_all(b"\x81\x82\0\0\0\0hi").unwrap();
    let mut echo = [0; 8];
    websocket.read_exact(&mut echo).unwrap();
    drop(websocket);
    let _ = waiting.read_to_end(&mut Vec::new());
    // The shutdown ends long before its timeout of 60 s.
    assert_eq!(proxy.wait(Duration::from_secs(20)).code(), Some(0));
}

#[test]
fn sigterm_waits_no_longer_than_the_shutdown_timeout() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    let mut stream = proxy.tls(HOST);
    write!(
        stream,
        "GET /events/10000/100 HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
    )
    .unwrap();
    eventually("the request is under way", SOON, || {
        origin.seen().len() == 1
    });
    proxy.signal(Signal::TERM);
    // `shutdown_timeout` is 2 s in this configuration.
    assert_eq!(proxy.wait(SOON).code(), Some(0));
}

#[test]
fn a_container_over_its_connection_limit_gets_429_and_others_do_not() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["max_connections_per_container"] = json!(3);
    setup.containers.push(("127.0.0.2".into(), "second".into()));
    let proxy = setup.start();
    let held: Vec<_> = (0..3)
        .map(|_| proxy.tunnel("api.example.com:443"))
        .collect();
    let (reply, mut over) = proxy.connect("api.example.com:443");
    reply.assert_connect_denied(429, "too_many_connections", "");
    assert_closes(&mut over);
    let (reply, _) = proxy.connect_from(SECOND, "api.example.com:443");
    assert_eq!(reply.status, 200);
    drop(held);
    eventually("a connection is accepted again", SOON, || {
        proxy.connect("api.example.com:443").0.status == 200
    });
}

#[test]
fn connections_of_all_containers_together_are_limited() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["max_connections"] = json!(3);
    let proxy = setup.start();
    let held: Vec<_> = (0..3)
        .map(|_| proxy.tunnel("api.example.com:443"))
        .collect();
    let (reply, _) = proxy.connect("api.example.com:443");
    reply.assert_connect_denied(429, "too_many_connections", "");
    drop(held);
    eventually("a connection is accepted again", SOON, || {
        proxy.connect("api.example.com:443").0.status == 200
    });
}

#[test]
fn slow_heads_handshakes_and_idle_tunnels_are_closed() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    // Long enough for the handshakes and the last request of this test on a busy machine.
    setup.proxy["limits"]["header_read_timeout"] = json!("2s");
    setup.proxy["upstream"]["idle_timeout"] = json!("2s");
    let proxy = setup.start();

    let mut head = proxy.dial();
    head.write_all(b"GET http://plain.example.com/ HTTP/1.1\r\nHost:")
        .unwrap();
    let mut silent = proxy.dial();
    silent.set_nodelay(true).unwrap();
    let mut hello = proxy.tunnel("api.example.com:443");
    hello.write_all(b"\x16\x03\x01").unwrap();
    let mut undecided = proxy.tunnel("api.example.com:443");
    let mut idle = proxy.tls(HOST);
    let since = Instant::now();
    for stream in [&mut silent, &mut hello] {
        assert_closes(stream);
    }
    // On these two connections, the test permits a response before the end.
    for stream in [&mut head, &mut undecided] {
        let _ = read_reply(stream);
        assert_closes(stream);
    }
    let _ = idle.read_to_end(&mut Vec::new());
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
    eventually("no connection is left", SOON, || {
        proxy.metric("proxy_active_connections", &[]) == 0.0
    });
}

#[test]
fn a_silent_tunnel_is_closed_without_a_response() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["header_read_timeout"] = json!("1s");
    let proxy = setup.start();
    let mut silent = proxy.tunnel("api.example.com:443");
    assert_closes(&mut silent);
    let line = proxy.audited(json!({ "kind": "tunnel", "host": HOST }));
    assert_eq!(
        (&line["outcome"], &line["code"]),
        (&json!("ok"), &json!(null))
    );
}

#[test]
fn a_client_that_waits_for_an_upstream_is_not_idle() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["idle_timeout"] = json!("2s");
    let proxy = setup.start();
    assert_eq!(proxy.https_get(HOST, "/slow/4500", &[]).status, 200);
}

#[test]
fn the_header_read_timeout_does_not_apply_to_a_slow_body() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["header_read_timeout"] = json!("3s");
    let proxy = setup.start();
    let mut stream = proxy.tls(HOST);
    write!(
        stream,
        "POST /echo HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 3\r\n\r\n"
    )
    .unwrap();
    for byte in ["a", "b", "c"] {
        std::thread::sleep(Duration::from_millis(1200));
        write!(stream, "{byte}").unwrap();
    }
    assert_eq!(read_reply(&mut stream).unwrap().json()["body"], "abc");
}

/// The client sends the rest of its body after the response, for longer than the timeout.
#[test]
fn the_header_read_timeout_does_not_apply_to_the_rest_of_a_body_that_the_upstream_did_not_take() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["header_read_timeout"] = json!("2s");
    let proxy = setup.start();
    let mut stream = proxy.tls(HOST);
    write!(
        stream,
        "POST /early HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 4\r\n\r\n"
    )
    .unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().text(), "early");
    for byte in ["r", "e", "s", "t"] {
        write!(stream, "{byte}").unwrap();
        std::thread::sleep(Duration::from_secs(1));
    }
    write!(stream, "GET /echo HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().status, 200);
}

#[test]
fn the_proxy_recovers_after_it_ran_out_of_file_descriptors() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let pid = Pid::from_raw(proxy.pid().cast_signed());
    let open = std::fs::read_dir(format!("/proc/{}/fd", proxy.pid()))
        .unwrap()
        .count() as u64;
    let few = Rlimit {
        current: Some(open + 8),
        maximum: Some(open + 8),
    };
    prlimit(pid, Resource::Nofile, few).unwrap();
    let crowd: Vec<_> = (0..100).map(|_| proxy.dial()).collect();
    std::thread::sleep(Duration::from_secs(2));
    drop(crowd);
    eventually("the proxy serves again", Duration::from_secs(15), || {
        proxy
            .curl(&["--max-time", "5", "http://plain.example.com/echo"])
            .status
            == 200
    });
    eventually("health is restored", SOON, || proxy.health().status == 200);
    let (reply, _) = proxy.connect_from(Ipv4Addr::new(127, 0, 0, 9), "api.example.com:443");
    reply.assert_connect_denied(403, "unknown_source", "Unknown source IP");
}

#[test]
fn many_tunnels_leave_file_descriptors_for_dns_admin_and_other_containers() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.open_files = Some(128);
    setup.proxy["limits"]["tunnels_per_second"] = json!(1000);
    let proxy = setup.start();
    let mut tunnel = proxy.tls(HOST);
    let mut crowd = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..300 {
        let mut stream = proxy.dial();
        let _ = write!(
            stream,
            "CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n"
        );
        if let Ok(reply) = read_connect_reply(&mut stream) {
            statuses.push(reply.status);
        }
        crowd.push(stream);
    }
    assert!(
        statuses.contains(&200) && statuses.contains(&429),
        "{statuses:?}"
    );
    assert!(statuses.iter().all(|status| [200, 429].contains(status)));
    write!(tunnel, "GET /echo HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut tunnel).unwrap().status, 200);
    let answer = proxy.dig(Ipv4Addr::LOCALHOST, &[HOST]);
    assert!(answer.contains("status: NOERROR"), "{answer}");
    assert_eq!(proxy.health().status, 200);
    proxy.register("127.0.0.5", "another");
    let another = Ipv4Addr::new(127, 0, 0, 5);
    assert_eq!(
        proxy.connect_from(another, &format!("{HOST}:443")).0.status,
        200
    );
    let log = proxy.log();
    assert!(!log.contains("accept or receive failed"), "{log}");
    drop(crowd);
    eventually("a tunnel is accepted again", SOON, || {
        proxy.connect(&format!("{HOST}:443")).0.status == 200
    });
}

#[test]
fn the_soft_limit_on_open_files_is_raised_to_the_hard_limit() {
    let origin = Origin::start();
    let mut own = getrlimit(Resource::Nofile);
    own.current = Some(512);
    setrlimit(Resource::Nofile, own).unwrap();
    let proxy = Proxy::start(&origin);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", proxy.pid())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<_> = files.unwrap().split_whitespace().skip(3).take(2).collect();
    assert_eq!(
        numbers[0], numbers[1],
        "the soft limit is not the hard limit"
    );
    assert_ne!(numbers[0], "512");
}
