//! `scripts/compare-proxies`, which sends the same requests through an old and a new proxy.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::git::{Forge, HOST};
use crate::support::{Proxy, Ran, Setup};

/// Input lines of the script, each with the prefix of the line that the script prints for it. The
/// old proxy has no git rules, so it permits `acme/other`.
const ROWS: [(&str, &str); 9] = [
    (
        "GET https://api.example.com/echo",
        "same      GET https://api.example.com/echo: 200",
    ),
    (
        r#"POST http://plain.example.com/echo {"a":1}"#,
        "same      POST http://plain.example.com/echo: 200",
    ),
    (
        "GET http://nowhere.example.org/",
        "same      GET http://nowhere.example.org/: 403 [domain_not_allowed]",
    ),
    (
        "GET http://other.example.com/echo",
        "DIFFERS   GET http://other.example.com/echo: old 502 [upstream_unreachable], new 403 [domain_not_allowed]",
    ),
    (
        "CONNECT other.example.com:443 # expected: left out of the new list",
        "expected  CONNECT other.example.com:443: old tunnel 200, new tunnel 403 (left out of the new list)",
    ),
    ("GIT acme/web", "same      GIT acme/web: 2 refs "),
    (
        "GIT acme/other # expected: another container's repository",
        "expected  GIT acme/other: old 2 refs ",
    ),
    (
        "DNS api.example.com",
        "same      DNS api.example.com: NOERROR with addresses",
    ),
    (
        "DNS other.example.com # expected: left out of the new list",
        "expected  DNS other.example.com: old NOERROR with addresses, new NXDOMAIN without addresses",
    ),
];

#[test]
fn compare_proxies_prints_expected_and_unexpected_differences() {
    let forge = Forge::with(
        |setup| {
            let kept = ["api.example.com", "plain.example.com", "git.example.com"];
            setup.allowlist = json!({ "version": 1, "domains": kept });
        },
        json!({}),
    );
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    let other = forge.origin.repositories().join("acme/other.git");
    let other = other.to_str().unwrap();
    forge.work(&["push", "--quiet", other, "main"]).ok();
    let old = Setup::new(&forge.origin).start();

    let list: String = ROWS.iter().map(|(line, _)| format!("{line}\n")).collect();
    let ran = compare(&old, &forge.proxy, &format!("# a comment\n\n{list}"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let printed: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(printed.len(), ROWS.len() + 1, "{ran:?}");
    for ((_, expected), line) in ROWS.iter().zip(&printed) {
        assert!(line.starts_with(expected), "{line} instead of {expected}");
    }
    let count = printed.last().unwrap();
    assert_eq!(*count, "5 the same, 3 expected to differ, 1 differ");

    let ran = compare(&old, &forge.proxy, "GET https://api.example.com/echo\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn compare_proxies_distinguishes_a_proxy_that_does_not_answer_from_a_refusal() {
    let forge = Forge::with(|_| {}, json!({}));
    let list = "GIT acme/other\n";
    let ran = compare(&forge.proxy, &forge.proxy, list);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout
            .starts_with("same      GIT acme/other: refused\n"),
        "{ran:?}"
    );

    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", port.local_addr().unwrap());
    drop(port);
    let ran = Ran::of(comparison(&forge.proxy, &forge.proxy, list).env("NEW", nobody));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let dead = "NO ANSWER GIT acme/other: old refused, new no answer\n";
    assert!(ran.stdout.starts_with(dead), "{ran:?}");
}

fn compare(old: &Proxy, new: &Proxy, list: &str) -> Ran {
    Ran::of(&mut comparison(old, new, list))
}

fn comparison(old: &Proxy, new: &Proxy, list: &str) -> Command {
    let file = new.path("requests.txt");
    std::fs::write(&file, list).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/compare-proxies");
    let mut command = Command::new(script);
    for (side, proxy) in [("OLD", old), ("NEW", new)] {
        command
            .env(side, proxy.url())
            .env(format!("{side}_CA"), proxy.ca())
            .env(format!("{side}_GIT"), format!("{HOST}/"))
            .env(
                format!("{side}_DNS"),
                format!("{}#{}", proxy.dns.ip(), proxy.dns.port()),
            );
    }
    command.arg(file);
    command
}
