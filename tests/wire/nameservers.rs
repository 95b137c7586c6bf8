//! Log, metrics and health checks when the proxy's nameservers stop answering and answer again.

use serde_json::json;

use crate::support::{Nameserver, Origin, Proxy, SOON, Setup, eventually};

const FAILURES: &str = "proxy_upstream_dns_failures_total";

/// Whether the check `upstream_dns_answers` passes. Panics if the health is degraded, or if the
/// metric differs from the check.
fn answers(proxy: &Proxy) -> bool {
    let health = proxy.health();
    assert_eq!(health.status, 200, "{}", health.text());
    let answers = &health.json()["checks"]["upstream_dns_answers"];
    let metric = proxy.metric("proxy_health", &["upstream_dns_answers"]);
    assert_eq!(answers.as_bool().unwrap(), metric == 1.0);
    metric == 1.0
}

#[test]
fn dead_nameservers_are_logged_counted_and_fail_a_check_without_degrading_health() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.allow("*.example.org");
    let proxy = setup.start();
    assert_eq!(proxy.metric(FAILURES, &[]), 0.0);
    assert!(answers(&proxy));

    for number in 0..2 {
        let reply = proxy.get(&format!("http://a{number}.example.org/"), &[]);
        reply.assert_denied(504, "upstream_timeout", "Cannot resolve");
    }
    // For each name, the A query and the AAAA query fail.
    eventually("the failures are counted", SOON, || {
        proxy.metric(FAILURES, &[]) >= 4.0
    });
    assert!(!answers(&proxy));
    let told = proxy.log().matches("names cannot be looked up").count();
    assert_eq!(told, 1, "{}", proxy.log());
}

#[test]
fn nameservers_that_answer_again_are_logged_and_pass_the_check() {
    let origin = Origin::start();
    let nameserver = Nameserver::start(&[("b.example.org", &[[127, 0, 0, 1].into()])]);
    let mut setup = Setup::new(&origin);
    setup.allow("*.example.org");
    let mut proxy_yaml = setup.proxy.clone();
    let config = setup.dir().join("config/proxy.yaml");
    let proxy = setup.start();
    proxy.get("http://a.example.org/", &[]);
    assert!(!answers(&proxy));

    // The operator corrects the nameservers in the configuration.
    proxy_yaml["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    std::fs::write(config, proxy_yaml.to_string()).unwrap();
    let reloaded = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    proxy.get("http://b.example.org/", &[]);
    eventually("the check passes again", SOON, || answers(&proxy));
    assert_eq!(
        proxy.log().matches("the nameservers answer again").count(),
        1
    );
    // NXDOMAIN is an answer, so it does not count as a failure.
    let counted = proxy.metric(FAILURES, &[]);
    proxy.get("http://none.example.org/", &[]);
    assert_eq!(proxy.metric(FAILURES, &[]), counted);
    assert!(answers(&proxy));
}
