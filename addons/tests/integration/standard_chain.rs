//! The standard chain: its order, one exchange through it, and its cost.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::*;
use testkit::each_row;

use crate::fixtures::{OneContainer, container, cpu_time, flow, query, request, start};
use crate::whole_chain::{Lines, SECRET, exchange, fields, now};

fn chain(lines: &Arc<Lines>) -> Arc<Chain> {
    crate::whole_chain::chain(Arc::clone(lines) as _, OneContainer::new(container("web")))
}

#[test]
fn the_standard_chain_is_in_order() {
    let names = [
        "metrics",
        "audit",
        "identity",
        "rate_limit",
        "circuit_breaker",
        "policy",
        "github",
        "mcp",
        "git",
        "credentials",
    ];
    assert_eq!(chain(&Arc::default()).names(), names);
}

#[test]
fn a_secret_is_added_to_a_request_and_scrubbed_from_its_response() {
    let lines = Arc::new(Lines::default());
    let (sent, body) = exchange(&chain(&lines));
    let field = |name| sent.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(field("authorization"), Some("Bearer sk-0123456789abcdef"));
    assert_eq!(field("accept-encoding"), Some("identity"));
    assert_eq!(field("x-container-id"), None);
    assert_eq!(field("x-forwarded-for"), None);
    assert_eq!(body, b"you sent [REDACTED:key]\n");
    let line = lines.0.lock().first().unwrap().clone();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["container_id"], "web");
    assert_eq!(line["credential"], "key");
    assert_eq!(line["rule"], "api.example.com");
    assert_eq!(line["upstream_addr"], "93.184.216.34:443");
    assert!(!line.to_string().contains(SECRET));
}

#[test]
fn reads_of_the_containers_repositories_get_a_credential_and_public_reads_do_not() {
    let chain = chain(&Arc::default());
    each_row(
        [("/acme/web", true), ("/acme/other", false)],
        |(target, is_added)| {
            let mut flow = flow(Kind::Http, "github.com");
            let mut sent = request(target, &[]);
            sent.headers = fields();
            now(chain.tunnel(&mut flow)).unwrap();
            now(chain.request(&mut flow, &mut sent)).unwrap();
            let has_credential = sent.headers.contains_key("authorization");
            assert_eq!(has_credential, is_added, "{target}");
        },
    );
}

#[test]
fn a_dns_question_is_judged_and_guarded_addresses_are_removed_from_its_answer() {
    let chain = chain(&Arc::default());
    let mut asked = flow(Kind::Dns, "api.example.com");
    now(chain.dns_query(&mut asked, &mut query("api.example.com"))).unwrap();
    let mut answer = DnsAnswer {
        addresses: ["127.0.0.1", "93.184.216.34"]
            .map(|a| a.parse().unwrap())
            .to_vec(),
    };
    now(chain.dns_answer(&mut asked, &mut answer)).unwrap();
    assert_eq!(answer.addresses.len(), 1);

    let mut unlisted = start(Kind::Dns, "evil.example.com");
    unlisted.entry = None;
    let mut unlisted = unlisted.begin();
    let denial = now(chain.dns_query(&mut unlisted, &mut query("evil.example.com"))).unwrap_err();
    assert_eq!(denial.code(), Code::DomainNotAllowed);
    assert_eq!(denial.addon(), "policy");
}

/// The limit is generous. Only a serious mistake exceeds it, such as a contended lock or an
/// automaton that is built for every request.
#[test]
fn a_request_passes_the_chain_in_less_than_500_us() {
    let chain = chain(&Arc::default());
    exchange(&chain);
    const ROUNDS: u32 = 400;
    // The least of five, since other load on the machine evicts the caches.
    let each = (0..5).map(|_| {
        let begun = cpu_time();
        for _ in 0..ROUNDS {
            exchange(&chain);
        }
        (cpu_time() - begun) / ROUNDS
    });
    let each = each.min().unwrap();
    println!("{each:?} for each request");
    assert!(each < Duration::from_micros(500), "{each:?}");
}
