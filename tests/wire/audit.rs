//! The audit log under floods and on a full disk, and the duration in its lines.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, SOON, Setup, eventually, read_reply};

const HOST: &str = "api.example.com";

/// Each request has a different path of about 1,000 bytes. Without a budget, each would get a long
/// audit line.
#[test]
fn a_flood_of_long_paths_stays_within_the_audit_byte_budget_and_other_containers_keep_their_lines()
{
    const FLOWS: usize = 1500;
    const BUDGET: usize = 64 * 1024;
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["audit"]["bytes_per_minute_per_container"] = json!(BUDGET);
    setup.containers.push(("127.0.0.2".into(), "second".into()));
    let mut proxy = setup.start();
    let begun = Instant::now();
    let mut stream = proxy.dial();
    let long = "a".repeat(1000);
    for number in 0..FLOWS {
        let url = format!("http://blocked.example.org/{number}/{long}");
        let head = format!("GET {url} HTTP/1.1\r\nHost: blocked.example.org\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(read_reply(&mut stream).unwrap().status, 403);
    }
    let urls = "http://blocked.example.org/[1-20]";
    proxy.curl_from(Ipv4Addr::new(127, 0, 0, 2), &[urls]);
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    let minutes = 1 + begun.elapsed().as_secs() as usize / 60;
    let text = std::fs::read_to_string(proxy.path("data/audit.jsonl")).unwrap();
    // Flows for which the budget has no room are counted in coarse lines, which have `*` as host.
    let (mut full, mut coarse, mut flows, mut others) = (0, 0, 0, 0);
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        if value["container_id"] == "second" {
            others += 1;
            continue;
        }
        flows += value["count"].as_u64().unwrap_or(1);
        match value["host"] == "*" {
            true => coarse += line.len() + 1,
            false => full += line.len() + 1,
        }
    }
    assert!(
        full <= minutes * BUDGET,
        "{full} bytes of detailed lines in {minutes} minutes"
    );
    assert!(
        full > BUDGET / 2,
        "{full} bytes of detailed lines, budget {BUDGET}"
    );
    assert!(
        coarse <= minutes * 128 * 1024,
        "{coarse} bytes of coarse lines"
    );
    assert_eq!((flows as usize, others), (FLOWS, 20));
    let verify = proxy.cli(&["audit", "verify", "--config", "config"]).ok();
    assert!(verify.contains("folded: "), "{verify}");
}

#[test]
fn a_full_disk_fails_a_health_check_and_denies_no_request() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    audit_on_a_full_disk(&mut setup);
    let proxy = setup.start();
    for _ in 0..5 {
        assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
    }
    eventually("a health check fails", SOON, || {
        let checks = proxy.health().json()["checks"].clone();
        checks
            .as_object()
            .unwrap()
            .values()
            .any(|check| check != &json!(true))
    });
    assert_eq!(proxy.health().status, 200);
}

/// Makes the path of the audit log a symbolic link to `/dev/full`, and returns the path. Once a
/// test removes the link, the proxy creates a file there and writes lines to it.
fn audit_on_a_full_disk(setup: &mut Setup) -> PathBuf {
    let directory = setup.dir().join("audit");
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("audit.jsonl");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    setup.proxy["audit"]["path"] = json!(path);
    path
}

#[test]
fn a_record_of_lost_audit_lines_is_in_the_hash_chain_once_the_disk_has_space() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    let path = audit_on_a_full_disk(&mut setup);
    let mut proxy = setup.start();
    let dropped = |proxy: &Proxy| proxy.metric("proxy_audit_lines_dropped_total", &[]);
    let get = |proxy: &Proxy| proxy.get("http://plain.example.com/status/204", &[]).status;
    for _ in 0..5 {
        assert_eq!(get(&proxy), 204);
    }
    eventually("the lines are lost", SOON, || dropped(&proxy) == 5.0);
    // The proxy ends before it can record that it lost 5 lines. The restarted proxy records them
    // together with the line that it loses itself.
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    proxy.restart();
    assert_eq!(get(&proxy), 204);
    eventually("another line is lost", SOON, || dropped(&proxy) == 1.0);
    assert_eq!(proxy.health().json()["checks"]["audit_writable"], false);

    std::fs::remove_file(&path).unwrap();
    eventually("lines are written again", SOON, || {
        proxy.health().json()["checks"]["audit_writable"] == true
    });
    assert_eq!(get(&proxy), 204);
    let flows = proxy.admin("GET", "/internal/flows", None).json();
    let is_loss = |flow: &Value| flow["kind"] == "lost" && flow["count"] == 6;
    assert!(
        flows["flows"].as_array().unwrap().iter().any(is_loss),
        "{flows}"
    );
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    let verify = || proxy.cli(&["audit", "verify", "--config", "config"]);
    let told = verify().ok();
    each_row(
        [": 2 lines, hash chain intact\n", "\nlost: 6 lines\n"],
        |part| {
            assert!(told.contains(part), "{part:?} is not in {told}");
        },
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let (record, rest) = text.split_once('\n').unwrap();
    let smaller = record.replace("\"count\":6", "\"count\":1");
    each_row(
        [format!("{smaller}\n{rest}"), rest.to_owned()],
        |tampered| {
            std::fs::write(&path, &tampered).unwrap();
            assert_eq!(verify().code, Some(70), "{tampered}");
        },
    );
}

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

#[test]
fn the_duration_of_a_malformed_request_counts_from_its_first_byte() {
    const HEAD_LASTS: Duration = Duration::from_millis(300);
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let streams: [Box<dyn Stream>; 2] = [Box::new(proxy.dial()), Box::new(proxy.tls(HOST))];
    for mut stream in streams {
        stream.write_all(b"no head").unwrap();
        std::thread::sleep(HEAD_LASTS);
        stream.write_all(b" at all\r\n\r\n").unwrap();
        assert_eq!(read_reply(&mut stream).unwrap().status, 400);
    }
    eventually("both durations are audited", SOON, || {
        let lasting = |line: &Value| {
            line["code"] == "malformed_request"
                && line["duration_ms"].as_u64() >= Some(HEAD_LASTS.as_millis() as u64 / 2)
        };
        proxy.audit().into_iter().filter(lasting).count() == 2
    });
}
