//! The operator's commands and signals, against a running proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::each_row;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::support::{Origin, Proxy, Reply, SANDBOX, SOON, Setup, eventually, read_reply};

const CONFIG: [&str; 2] = ["--config", "config"];

#[test]
fn explain_shows_the_verdict_and_the_edit_that_would_change_it() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let explain = |url: &str| proxy.cli(&["explain", SANDBOX, "GET", url]);
    let allowed = explain("https://api.example.com/echo").ok();
    assert!(allowed.starts_with("GET https://api.example.com/echo by sandbox: allowed"));
    assert!(allowed.contains("allowlist.yaml:"), "{allowed}");
    let url = "http://plain.example.com:8080/";
    each_row(
        [
            (
                "https://late.example.org/",
                "domain_not_allowed: Domain not allowed: late.example.org",
                "to change it: add \"- late.example.org\" under domains in allowlist.yaml",
            ),
            (
                url,
                "port_not_allowed",
                "to change it: add 8080 to the ports at allowlist.yaml:",
            ),
        ],
        |(url, code, edit)| {
            let denied = explain(url).exits(1);
            assert!(
                denied.starts_with(&format!("GET {url} by sandbox: denied")),
                "{denied}"
            );
            for part in [code, edit] {
                assert!(denied.contains(part), "{part} is not in {denied}");
            }
        },
    );
    let ran = proxy.cli(&["explain", "nobody", "GET", url]);
    assert_eq!(ran.code, Some(64), "{ran:?}");
    let said = format!("no container nobody is registered; registered: {SANDBOX}");
    assert!(ran.stderr.contains(&said), "{ran:?}");
    origin.assert_untouched();
    assert_eq!(proxy.metric("proxy_requests_total", &[]), 0.0);
}

#[test]
fn commands_for_an_unknown_container_name_the_registered_ones() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.register("127.0.0.9", "another");
    let url = "https://api.example.com/";
    each_row(
        [
            &["explain", "nope", "GET", url][..],
            &["explain", "nope", "tools/call", "notes", "add"],
            &["container", "rm", "nope"],
            &["container", "show", "nope"],
            &["container", "reset", "nope"],
        ],
        |arguments| {
            let ran = proxy.cli(arguments);
            assert_eq!(ran.code, Some(64), "{arguments:?}: {ran:?}");
            let said = format!("no container nope is registered; registered: another, {SANDBOX}");
            assert!(ran.stderr.contains(&said), "{arguments:?}: {ran:?}");
        },
    );
    for id in ["another", SANDBOX] {
        proxy.cli(&["container", "rm", id]).ok();
    }
    let ran = proxy.cli(&["container", "rm", "nope"]);
    assert!(ran.stderr.contains("container add"), "{ran:?}");
}

#[test]
fn explain_of_a_connect_shows_the_tunnel_limit_and_does_not_count_against_it() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["tunnels_per_second"] = json!(1);
    let proxy = setup.start();
    let explain = |to: &str| proxy.cli(&["explain", SANDBOX, "CONNECT", to]);
    for _ in 0..5 {
        let allowed = explain("api.example.com:443").ok();
        assert!(allowed.starts_with("CONNECT api.example.com:443 by sandbox: allowed"));
        let limit = "at most 1 tunnels a second, 4 at once";
        assert!(allowed.contains(limit), "{allowed}");
    }
    for _ in 0..4 {
        proxy.tunnel("api.example.com:443");
    }
    let denied = explain("late.example.org:443").exits(1);
    assert!(denied.contains("domain_not_allowed"), "{denied}");
    let ran = explain("https://api.example.com/");
    assert_eq!(ran.code, Some(64), "{ran:?}");
    assert!(ran.stderr.contains("a CONNECT names HOST:PORT"), "{ran:?}");
    origin.assert_untouched();
}

#[test]
fn explain_gives_each_reason_once() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            ["CONNECT", "api.example.com:443"],
            ["GET", "https://api.example.com/"],
        ],
        |arguments| {
            let [method, target] = arguments;
            let said = proxy.cli(&["explain", SANDBOX, method, target]).ok();
            for reason in ["at its registered source", "allowed by api.example.com"] {
                assert_eq!(
                    said.matches(reason).count(),
                    1,
                    "{reason} is not exactly once in {said}"
                );
            }
        },
    );
}

#[test]
fn explain_exits_with_0_if_allowed_1_if_denied_and_64_for_invalid_arguments() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.allow("127.0.0.1");
    setup.host("metadata.example.com", "169.254.169.254");
    setup.allow(json!({ "domain": "quiet.example.com", "websocket": false }));
    setup.proxy["upstream"]["hosts"]["quiet.example.com"] = origin.https.to_string().into();
    let proxy = setup.start();
    each_row(
        [
            ("GET", "https://api.example.com/", 0, "allowed"),
            ("get", "https://api.example.com/", 0, "allowed"),
            ("Connect", "api.example.com:443", 0, "allowed"),
            ("GET", "wss://api.example.com/socket", 0, "allowed"),
            ("GET", "ws://plain.example.com/socket", 0, "allowed"),
            ("CONNECT", "api.example.com:443", 0, "allowed"),
            ("GET", "https://quiet.example.com/", 0, "allowed"),
            (
                "GET",
                "wss://quiet.example.com/",
                1,
                "websocket_not_allowed",
            ),
            ("GET", "wss://late.example.org/", 1, "domain_not_allowed"),
            ("CONNECT", "late.example.org:443", 1, "domain_not_allowed"),
            ("CONNECT", "api.example.com:22", 1, "port_not_allowed"),
            (
                "CONNECT",
                "metadata.example.com:443",
                1,
                "address_not_allowed",
            ),
            ("CONNECT", "169.254.169.254:80", 1, "address_not_allowed"),
            ("TRACE", "https://api.example.com/", 1, "method_not_allowed"),
            (
                "GET",
                "api.example.com:443",
                64,
                "HOST:PORT alone goes with CONNECT",
            ),
            ("GET", "ftp://api.example.com/", 64, "wss://"),
            ("POST", "wss://api.example.com/", 64, "opened with GET"),
            (
                "CONNECT",
                "api.example.com",
                64,
                "a CONNECT names HOST:PORT",
            ),
        ],
        |(method, target, code, said)| {
            for json in [&[][..], &["--json"]] {
                let arguments = [&["explain", SANDBOX, method, target], json].concat();
                let ran = proxy.cli(&arguments);
                assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
                let output = format!("{}{}", ran.stdout, ran.stderr);
                assert!(output.contains(said), "{arguments:?}: {ran:?}");
            }
        },
    );
    origin.assert_untouched();
}

#[test]
fn explain_suggests_no_edit_for_a_guarded_address() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.host("metadata.example.com", "169.254.169.254");
    let proxy = setup.start();
    each_row(
        [
            ("GET", "http://169.254.169.254/latest/meta-data/"),
            ("CONNECT", "169.254.169.254:443"),
            ("GET", "http://[::1]/"),
            ("GET", "https://metadata.example.com/"),
            ("CONNECT", "metadata.example.com:443"),
        ],
        |(method, target)| {
            let denied = proxy.cli(&["explain", SANDBOX, method, target]).exits(1);
            assert!(denied.contains("address_not_allowed"), "{denied}");
            assert!(!denied.contains("to change it"), "{denied}");
        },
    );
}

#[test]
fn tail_shows_the_denied_flows_of_one_container_as_they_end() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.register("127.0.0.2", "second");
    let mut tail = proxy
        .own_command(&["tail", "--denied", "--container", SANDBOX])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let (sender, shown) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|l| sender.send(l)));
    let second = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut first = None;
    // `tail` shows only flows that end after it has connected, and prints nothing when it connects.
    // So the test repeats the flows until a line appears.
    eventually("a line is shown", SOON, || {
        proxy.curl_from(second, &["http://blocked.example.org/second"]);
        proxy.get("http://plain.example.com/echo", &[]);
        proxy.get("http://blocked.example.org/first", &[]);
        first = shown.recv_timeout(Duration::from_millis(500)).ok();
        first.is_some()
    });
    tail.kill().unwrap();
    tail.wait().unwrap();
    for line in first.into_iter().chain(shown) {
        let expected = "sandbox http GET blocked.example.org:80/first 403 denied \
                        domain_not_allowed by policy";
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn audit_verify_passes_across_a_rotation_and_finds_changed_and_missing_lines() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["audit"]["max_bytes"] = json!(1024 * 1024);
    setup.proxy["audit"]["lines_per_minute_per_container"] = json!(100_000);
    setup.proxy["audit"]["bytes_per_minute_per_container"] = json!("100MB");
    let mut proxy = setup.start();
    // Each line has over 1 KB, so that 1,500 lines exceed `max_bytes`.
    let url = format!("http://blocked.example.org/{}", "a".repeat(1000));
    let request = format!("GET {url} HTTP/1.1\r\nHost: blocked.example.org\r\n\r\n");
    let mut stream = proxy.dial();
    for _ in 0..1500 {
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(read_reply(&mut stream).unwrap().status, 403);
    }
    let verify = |proxy: &Proxy| proxy.cli(&[&["audit", "verify"][..], &CONFIG].concat());
    let (newest, older) = (
        proxy.path("data/audit.jsonl"),
        proxy.path("data/audit.jsonl.1"),
    );
    eventually("the log is rotated, its chain intact", SOON, || {
        older.exists() && verify(&proxy).code == Some(0)
    });
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    let whole = verify(&proxy);
    assert!(
        whole.stdout.ends_with(" lines, hash chain intact\n"),
        "{whole:?}"
    );

    for file in [&newest, &older] {
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.len() / 2;
        let whitewashed = lines[at].replace("denied", "ok");
        let without: Vec<&str> = [&lines[..at], &lines[at + 1..]].concat();
        let changed: Vec<&str> = [&lines[..at], &[&whitewashed], &lines[at + 1..]].concat();
        for (tampered, line) in [(changed, at + 2), (without, at + 1)] {
            std::fs::write(file, tampered.join("\n") + "\n").unwrap();
            let ran = verify(&proxy);
            assert_eq!(ran.code, Some(70), "{ran:?}");
            let place = format!("{}:{line}:", file.display());
            assert!(ran.stderr.contains(&place), "{place} is not in {ran:?}");
        }
        std::fs::write(file, &text).unwrap();
    }
    let text = std::fs::read_to_string(&newest).unwrap();
    let end = text.trim_end().rfind('\n').unwrap() + 1;
    std::fs::write(&newest, &text[..end]).unwrap();
    let ran = verify(&proxy);
    assert_eq!(ran.code, Some(70), "{ran:?}");
    assert!(ran.stderr.contains("missing from its end"), "{ran:?}");
}

#[test]
fn a_rotated_ca_is_published_at_once_and_clients_with_the_old_or_new_file_accept_leaves() {
    let origin = Origin::start();
    let mut proxy = Proxy::start(&origin);
    let before = std::fs::read(proxy.ca()).unwrap();
    std::fs::write(proxy.path("before.pem"), &before).unwrap();
    let mut tunnel = proxy.tls("api.example.com");
    let ca = |proxy: &Proxy, what: &str| proxy.cli(&[&["ca", what][..], &CONFIG].concat()).ok();
    let bundled = certificates(&proxy, "certs/ca-bundle.pem");
    let said = ca(&proxy, "rotate");
    let (_, from) = said.split_once("the new CA signs from ").unwrap();
    let from = from.trim().strip_suffix(" on").unwrap();
    OffsetDateTime::parse(from, &Rfc3339).unwrap();
    assert_eq!(certificates(&proxy, "certs/ca.pem"), 2);
    assert_eq!(certificates(&proxy, "certs/ca-bundle.pem"), bundled + 1);
    let path = ca(&proxy, "path");
    assert_eq!(std::path::Path::new(path.trim()), proxy.ca());
    let shown = ca(&proxy, "show");
    assert_eq!(shown.matches("# SHA-256: ").count(), 2, "{shown}");
    assert_eq!(shown.matches("# subject: CN=unified-proxy CA ").count(), 2);

    let trusting = |proxy: &Proxy, pem: &str| {
        let path = proxy.path(pem);
        let pem = ["--cacert", path.to_str().unwrap()];
        proxy
            .curl(&[&pem[..], &["https://other.example.com/echo"]].concat())
            .status
    };
    let request = b"GET /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    tunnel.write_all(request).unwrap();
    assert_eq!(read_reply(&mut tunnel).unwrap().status, 200);
    for round in ["before a restart", "after a restart"] {
        for pem in ["before.pem", "certs/ca.pem", "certs/ca-bundle.pem"] {
            assert_eq!(trusting(&proxy, pem), 200, "{pem} {round}");
        }
        proxy.crash_and_restart();
    }
    // Until the new CA signs, another rotation is refused.
    let again = proxy.cli(&[&["ca", "rotate"][..], &CONFIG].concat());
    assert_eq!(again.code, Some(78), "{again:?}");
    assert_eq!(certificates(&proxy, "certs/ca.pem"), 2);
}

#[test]
fn ca_show_prints_the_fingerprint_and_a_file_that_clients_trust() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let shown = proxy.cli(&[&["ca", "show"][..], &CONFIG].concat()).ok();
    let file = proxy.path("shown.pem");
    std::fs::write(&file, &shown).unwrap();
    let file = file.to_str().unwrap();

    let openssl = ["x509", "-in", file, "-noout", "-fingerprint", "-sha256"];
    let said = proxy.run("openssl", &openssl).ok();
    let fingerprint = said.trim().split_once('=').unwrap().1;
    assert!(
        shown.contains(&format!("# SHA-256: {fingerprint}\n")),
        "{shown}"
    );

    let url = "https://api.example.com/echo";
    let curl = proxy.curl(&["--cacert", file, url]);
    assert_eq!(curl.status, 200, "{curl:?}");
    let script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)";
    let mut python = proxy.command("python3");
    let python = python.env("SSL_CERT_FILE", file).args(["-c", script, url]);
    let output = python.output().unwrap();
    assert_eq!(output.stdout, b"200\n", "{output:?}");
    let script = "const { X509Certificate } = require('node:crypto');
        require('node:tls').createSecureContext({ ca: require('node:fs').readFileSync(process.argv[1]) });
        console.log(new X509Certificate(require('node:fs').readFileSync(process.argv[1])).fingerprint256)";
    let said = proxy.run("node", &["-e", script, file]).ok();
    assert_eq!(said.trim(), fingerprint);
}

#[test]
fn a_backup_overwrites_a_file_only_with_force() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let backup = |more: &[&str]| {
        let arguments = ["registry", "backup", "copy.db", "--config", "config"];
        proxy.cli(&[&arguments[..], more].concat())
    };
    std::fs::write(proxy.path("copy.db"), "dear notes").unwrap();
    let refused = backup(&[]);
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(
        refused.stderr.contains("copy.db exists already"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("--force"), "{refused:?}");
    let kept = std::fs::read_to_string(proxy.path("copy.db")).unwrap();
    assert_eq!(kept, "dear notes");
    backup(&["--force"]).ok();
    std::fs::remove_file(proxy.path("copy.db")).unwrap();
    backup(&[]).ok();
}

#[test]
fn sigusr1_and_sigusr2_are_logged_and_do_not_end_the_proxy() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")],
        |(signal, name)| {
            proxy.signal(signal);
            eventually("the signal is in the log", SOON, || {
                proxy.log().contains(name)
            });
        },
    );
    assert_eq!(proxy.https_get("api.example.com", "/echo", &[]).status, 200);
}

#[test]
fn a_registration_names_the_containers_whose_leases_it_replaced() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let add = |arguments: &[&str]| proxy.cli(&[&["container", "add"], arguments].concat()).ok();
    assert_eq!(add(&["first", "--ip", "127.0.0.2"]), "registered first\n");
    // An identical registration only extends the lease.
    assert_eq!(add(&["first", "--ip", "127.0.0.2"]), "registered first\n");
    let said = add(&["second", "--ip", "127.0.0.2"]);
    assert!(said.contains("replaced the lease of first"), "{said}");
    let moved: Value =
        serde_json::from_str(&add(&["second", "--ip", "127.0.0.1", "--json"])).unwrap();
    assert_eq!(
        moved,
        json!({ "status": "registered", "container_id": "second", "replaced": ["second", SANDBOX] })
    );
    let said = add(&["second", "--ip", "127.0.0.3"]);
    assert!(
        said.contains("replaced the earlier lease of second"),
        "{said}"
    );
}

fn certificates(proxy: &Proxy, name: &str) -> usize {
    let text = std::fs::read_to_string(proxy.path(name)).unwrap();
    text.matches("BEGIN CERTIFICATE").count()
}

#[test]
fn a_container_is_identified_by_its_socket() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let add = [
        "container",
        "add",
        "boxed",
        "--listener",
        "unix",
        "--allow-domain",
        "plain.example.com",
        "--json",
    ];
    let added: Value = serde_json::from_str(&proxy.cli(&add).ok()).unwrap();
    let socket = added["socket"].as_str().unwrap().to_owned();
    // The socket exists as soon as the command has returned.
    let mut stream = UnixStream::connect(&socket).unwrap();
    assert_eq!(
        ask(&mut stream, "GET http://plain.example.com/echo", "").status,
        200
    );
    proxy.audited(json!({ "container_id": "boxed", "host": "plain.example.com", "status": 200 }));
    let mismatch = "X-Container-Id: sandbox\r\n";
    let reply = ask(&mut stream, "GET http://plain.example.com/echo", mismatch);
    reply.assert_denied(403, "container_id_mismatch", "Container ID mismatch");
    // The container's `allowed_domains` apply only to this container.
    let reply = ask(&mut stream, "CONNECT api.example.com:443", "");
    reply.assert_connect_denied(403, "domain_not_allowed", "Domain not allowed");
    assert_eq!(proxy.https_get("api.example.com", "/echo", &[]).status, 200);

    let mut tunnel = UnixStream::connect(&socket).unwrap();
    write!(
        tunnel,
        "CONNECT plain.example.com:80 HTTP/1.1\r\nHost: plain.example.com:80\r\n\r\n"
    )
    .unwrap();
    let mut head = [0; 19];
    tunnel.read_exact(&mut head).unwrap();
    assert!(head.starts_with(b"HTTP/1.1 200"), "{head:?}");
    proxy.cli(&["container", "rm", "boxed"]).ok();
    tunnel
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let ended = tunnel.read_to_end(&mut Vec::new());
    assert!(
        !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        "the tunnel outlives its lease"
    );
    eventually("the socket is gone", SOON, || {
        UnixStream::connect(&socket).is_err()
    });
    assert_eq!(proxy.https_get("api.example.com", "/echo", &[]).status, 200);
}

fn ask(stream: &mut UnixStream, line: &str, fields: &str) -> Reply {
    let target = line.split(' ').nth(1).unwrap();
    let host = target
        .trim_start_matches("http://")
        .split('/')
        .next()
        .unwrap();
    write!(stream, "{line} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").unwrap();
    read_reply(stream).unwrap()
}

#[test]
fn a_registered_socket_accepts_connections_at_once() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    for number in 0..8 {
        let body = json!({
            "listener": "unix", "container_id": format!("boxed-{number}"), "repos": [],
        });
        let reply = proxy.admin("POST", "/internal/containers", Some(body));
        let socket = reply.json()["socket"].as_str().unwrap().to_owned();
        let connected = UnixStream::connect(&socket);
        assert!(connected.is_ok(), "{socket}: {connected:?}");
    }
}
