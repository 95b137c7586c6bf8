//! Requests of sandboxes through the proxy, while the proxy runs and after it was killed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::attempts::{Listeners, reach};
use crate::fixture::{Fixture, INTERNET};
use crate::summary::can_run;
use crate::support::SOON;

/// Time within which `unified-proxy serve` must answer after a restart.
const RESTART: Duration = Duration::from_secs(1);

#[test]
fn sandboxes_reach_allowed_hosts_through_the_proxy() {
    if !can_run("sandboxes_reach_allowed_hosts_through_the_proxy") {
        return;
    }
    let fixture = Fixture::start();
    fixture.origin.create_repository("acme/web");
    fixture.up("a", &["--repo", "acme/web"]);
    fixture.up("b", &[]);
    for name in ["a", "b"] {
        assert_eq!(
            fixture.status(name, "http://plain.example.com/echo"),
            "200/000"
        );
        assert_eq!(
            fixture.status(name, "https://api.example.com/echo"),
            "200/200"
        );
        assert_eq!(
            fixture.status(name, "https://denied.example.org/"),
            "000/403 56"
        );
        let answer = fixture.exec(name, "dig +short api.example.com").ok();
        assert_eq!(answer.trim(), INTERNET.to_string());
        let answer = fixture.exec(name, "dig denied.example.org").ok();
        assert!(answer.contains("status: NXDOMAIN"), "{answer}");
    }
    let seen = fixture.origin.seen();
    assert_eq!(seen.len(), 4, "{seen:?}");
    fixture
        .exec(
            "a",
            "git clone --quiet https://git.example.com/acme/web web && test -d web/.git",
        )
        .ok();
}

#[test]
fn a_sandbox_cannot_use_the_repositories_of_another() {
    if !can_run("a_sandbox_cannot_use_the_repositories_of_another") {
        return;
    }
    let fixture = Fixture::start();
    for repo in ["acme/a", "acme/b"] {
        fixture.origin.create_repository(repo);
    }
    fixture.up("a", &["--repo", "acme/a", "--mode", "bot"]);
    fixture.up("b", &["--repo", "acme/b"]);
    assert_eq!(fixture.registration("a").unwrap()["auth_mode"], "bot");
    for (name, own, other) in [("a", "acme/a", "acme/b"), ("b", "acme/b", "acme/a")] {
        let list = |repo: &str| {
            fixture.exec(
                name,
                &format!("git ls-remote https://git.example.com/{repo}"),
            )
        };
        list(own).ok();
        let denied = list(other);
        assert_eq!(denied.code, Some(128), "{denied:?}");
        assert!(denied.stderr.contains("Repo not authorized"), "{denied:?}");
    }
}

#[test]
fn a_killed_proxy_stops_traffic_and_restarts_with_its_registrations() {
    if !can_run("a_killed_proxy_stops_traffic_and_restarts_with_its_registrations") {
        return;
    }
    let mut fixture = Fixture::start();
    let listeners = Listeners::on(&fixture.internet, true);
    let a = fixture.up("a", &[]);
    fixture.up("b", &[]);
    let before = fixture.registration("a");
    assert!(before.is_some());

    fixture.proxy.signal(Signal::KILL);
    fixture.proxy.wait(SOON);
    let requests = fixture.origin.seen().len();
    for name in ["a", "b"] {
        assert_eq!(
            fixture.status(name, "http://plain.example.com/echo"),
            "000/000 7"
        );
        assert_eq!(
            fixture.status(name, "https://api.example.com/echo"),
            "000/000 7"
        );
        assert_eq!(
            fixture
                .exec(name, "dig +time=1 +tries=1 api.example.com")
                .code,
            Some(9)
        );
    }
    assert_eq!(reach(&a.machine(), &[INTERNET.into()]), [""; 0]);
    assert_eq!(listeners.received(), [""; 0]);
    assert_eq!(fixture.origin.seen().len(), requests);

    let started = Instant::now();
    let Fixture { host, proxy, .. } = &mut fixture;
    host.run(|| proxy.restart());
    assert!(started.elapsed() < RESTART, "{:?}", started.elapsed());
    assert_eq!(fixture.registration("a"), before);
    for name in ["a", "b"] {
        assert_eq!(
            fixture.status(name, "https://api.example.com/echo"),
            "200/200"
        );
    }
}
