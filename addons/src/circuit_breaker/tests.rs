use std::num::NonZeroU32;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use prometheus::{Registry, TextEncoder};
use testkit::each_row;

use super::*;
use crate::contract::{
    Container, EntryMap, HostPattern, Origin, OwnedFlow, Principal, Stage, System,
};
use crate::fixtures::{container, entry, flow_of, request, verdict};

const RECOVERY: u64 = 30;

struct Breaker {
    addon: CircuitBreaker,
    breakers: Breakers,
    registry: Registry,
}

fn thresholds(failures: u32) -> Thresholds {
    Thresholds {
        failures: NonZeroU32::new(failures).unwrap(),
        recovery: Duration::from_secs(RECOVERY),
        successes: NonZeroU32::new(1).unwrap(),
    }
}

fn addon(breakers: &Breakers, failures: u32) -> CircuitBreaker {
    let mut passthrough = EntryMap::default();
    let origin = Origin {
        file: "proxy.yaml".into(),
        line: 1,
    };
    passthrough.insert(HostPattern::parse("raw.example.com").unwrap(), origin);
    let settings = CircuitBreakerSettings {
        defaults: thresholds(failures),
        upstreams: EntryMap::default(),
        passthrough,
    };
    CircuitBreaker::new(settings, breakers.clone())
}

fn breaker(failures: u32) -> Breaker {
    let registry = Registry::new();
    let breakers = Breakers::new(&registry).unwrap();
    breakers.name_upstreams([Arc::from("*.example.com")].into_iter());
    Breaker {
        addon: addon(&breakers, failures),
        breakers,
        registry,
    }
}

/// The end of an exchange.
enum End {
    Status(u16),
    Denied(Code, Option<Stage>),
    Aborted,
}

fn flow_at(container: &Arc<Container>, kind: Kind, seconds: u64) -> OwnedFlow {
    let mut flow = flow_of(container, kind, "api.example.com");
    flow.start_mut().entry = Some(entry("*.example.com"));
    flow.start_mut().started += Duration::from_secs(seconds);
    flow
}

impl Breaker {
    fn begin(&self, flow: &mut Flow) -> Verdict {
        match flow.kind {
            Kind::Tunnel => verdict(self.addon.tunnel(flow)),
            _ => verdict(self.addon.request(flow, &mut request("/", &[]))),
        }
    }

    fn end(&self, mut flow: OwnedFlow, end: End) {
        let denial = match end {
            End::Status(status) => {
                let status = StatusCode::from_u16(status).unwrap();
                let mut response = Response::new(status, HeaderMap::new());
                verdict(self.addon.response(&mut flow, &mut response)).unwrap();
                None
            }
            End::Denied(code, stage) => {
                let denial = Denial::new(code, "no");
                Some(stage.map_or(denial.clone(), |stage| denial.at(stage)))
            }
            End::Aborted => None,
        };
        let outcome = Outcome {
            status: 0,
            aborted: denial.is_none(),
            denial,
            duration: Duration::ZERO,
        };
        self.addon.finished(&flow, &outcome);
    }

    /// One exchange that begins `seconds` from now.
    fn exchange(&self, container: &Arc<Container>, seconds: u64, end: End) -> Verdict {
        let mut flow = flow_at(container, Kind::Http, seconds);
        self.begin(&mut flow)?;
        self.end(flow, end);
        Ok(())
    }

    fn is_open(&self, container: &Arc<Container>) -> bool {
        let mut flow = flow_at(container, Kind::Http, 1).dry_run();
        self.begin(&mut flow).is_err()
    }

    fn text(&self) -> String {
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).unwrap()
    }
}

fn unreachable() -> End {
    End::Denied(Code::UpstreamUnreachable, Some(Stage::Connect))
}

#[test]
fn an_open_circuit_denies_at_once_with_the_time_to_wait() {
    let (breaker, web) = (breaker(2), container("web"));
    for _ in 0..2 {
        breaker.exchange(&web, 0, End::Status(503)).unwrap();
    }
    let denial = breaker.exchange(&web, 1, End::Status(200)).unwrap_err();
    assert_eq!(denial.code(), Code::CircuitOpen);
    let json = denial.to_json();
    assert_eq!(json["error"], "Service temporarily unavailable");
    assert_eq!(json["reason"], "circuit_breaker_open");
    assert_eq!(json["upstream"], "api.example.com");
    let wait = denial.retry_after_seconds().unwrap();
    assert!((RECOVERY - 1..=RECOVERY).contains(&wait), "{wait}");
}

#[test]
fn connect_faults_count_for_all_containers_and_faulty_responses_for_one() {
    use Code::*;
    each_row(
        [
            (UpstreamUnreachable, Some(Stage::Connect), true, true),
            (UpstreamTimeout, Some(Stage::Connect), true, true),
            (UpstreamTls, Some(Stage::Tls), true, true),
            (UpstreamTimeout, Some(Stage::Tls), true, true),
            (UpstreamTimeout, Some(Stage::Response), true, false),
            (UpstreamUnreachable, Some(Stage::Response), true, false),
            (UpstreamUnreachable, Some(Stage::Resolve), false, false),
            // A WebSocket to a host that speaks only HTTP/2.
            (UpstreamTls, None, false, false),
            (DomainNotAllowed, None, false, false),
            (InternalError, Some(Stage::Connect), false, false),
        ],
        |(code, stage, own, others)| {
            let (breaker, web, db) = (breaker(3), container("web"), container("db"));
            for _ in 0..3 {
                breaker.exchange(&web, 0, End::Denied(code, stage)).unwrap();
            }
            let found = (breaker.is_open(&web), breaker.is_open(&db));
            assert_eq!(found, (own, others), "{code:?} {stage:?}");
        },
    );
}

#[test]
fn a_fault_of_a_connection_that_several_flows_waited_for_counts_once() {
    let (breaker, web) = (breaker(2), container("web"));
    breaker.exchange(&web, 0, unreachable()).unwrap();
    for _ in 0..5 {
        let mut flow = flow_at(&web, Kind::Http, 0);
        flow.put_slot(SharedFault);
        breaker.end(flow, unreachable());
    }
    assert!(!breaker.is_open(&web));
}

#[test]
fn every_5xx_counts_and_any_other_status_resets_the_count() {
    each_row(
        [
            (500, true),
            (502, true),
            (504, true),
            (404, false),
            (429, false),
        ],
        |(status, opens)| {
            let (breaker, web) = (breaker(2), container("web"));
            for _ in 0..2 {
                breaker.exchange(&web, 0, End::Status(status)).unwrap();
            }
            assert_eq!(breaker.is_open(&web), opens, "{status}");
            assert!(!breaker.is_open(&container("db")), "{status}");
        },
    );
    let (breaker, web) = (breaker(2), container("web"));
    for status in [500, 200, 500, 101, 500] {
        breaker.exchange(&web, 0, End::Status(status)).unwrap();
    }
    assert!(!breaker.is_open(&web));
}

#[test]
fn a_probe_ends_with_the_response_head_or_with_its_flow() {
    let (breaker, web) = (breaker(1), container("web"));
    breaker.exchange(&web, 0, unreachable()).unwrap();
    let mut probe = flow_at(&web, Kind::Http, RECOVERY + 1);
    breaker.begin(&mut probe).unwrap();
    assert!(
        breaker
            .exchange(&web, RECOVERY + 1, End::Status(200))
            .is_err()
    );
    breaker.end(probe, End::Aborted);
    let mut probe = flow_at(&web, Kind::Http, RECOVERY + 2);
    breaker.begin(&mut probe).unwrap();
    let mut head = Response::new(StatusCode::OK, HeaderMap::new());
    verdict(breaker.addon.response(&mut probe, &mut head)).unwrap();
    // The body of the probe's response has not ended.
    assert!(
        breaker
            .exchange(&web, RECOVERY + 2, End::Status(200))
            .is_ok()
    );
    assert!(breaker.breakers.all_closed());
}

#[test]
fn a_dry_run_is_denied_by_an_open_circuit_and_is_not_a_probe() {
    let (breaker, web) = (breaker(1), container("web"));
    breaker.exchange(&web, 0, unreachable()).unwrap();
    assert!(breaker.is_open(&web));
    let mut dry_run = flow_at(&web, Kind::Http, RECOVERY + 1).dry_run();
    breaker.begin(&mut dry_run).unwrap();
    assert!(
        breaker
            .exchange(&web, RECOVERY + 1, End::Status(200))
            .is_ok()
    );
}

#[test]
fn only_passthrough_tunnels_are_denied_and_a_connection_counts_as_a_success() {
    let (breaker, web) = (breaker(1), container("web"));
    let tunnel = |host: &str, seconds| {
        let mut flow = flow_at(&web, Kind::Tunnel, seconds);
        flow.endpoint_mut().host = crate::contract::Host::parse(host).unwrap();
        flow
    };
    breaker.end(tunnel("raw.example.com", 0), unreachable());
    breaker.end(tunnel("api.example.com", 0), unreachable());
    assert!(breaker.begin(&mut tunnel("raw.example.com", 1)).is_err());
    assert!(breaker.begin(&mut tunnel("api.example.com", 1)).is_ok());
    let mut connected = tunnel("raw.example.com", RECOVERY + 1);
    breaker.begin(&mut connected).unwrap();
    connected.record_mut().upstream_addr = Some(([8, 8, 8, 8], 443).into());
    breaker.end(connected, End::Aborted);
    assert!(breaker.begin(&mut tunnel("raw.example.com", 1)).is_ok());
}

#[test]
fn a_reload_keeps_the_circuits() {
    let (breaker, web) = (breaker(1), container("web"));
    breaker.exchange(&web, 0, unreachable()).unwrap();
    let reloaded = Breaker {
        addon: addon(&breaker.breakers, 5),
        ..breaker
    };
    assert!(reloaded.is_open(&web));
}

#[test]
fn requests_of_the_appliance_use_only_the_shared_circuit() {
    let (breaker, web) = (breaker(1), container("web"));
    let system = Arc::new(System {
        name: "token refresh".into(),
        hosts: Vec::new(),
        trust_private: false,
        url_secrets: Default::default(),
    });
    let own = || {
        let mut flow = flow_at(&web, Kind::Http, 1);
        flow.start_mut().principal = Some(Principal::System(Arc::clone(&system)));
        flow
    };
    breaker.end(own(), End::Status(500));
    assert!(verdict(breaker.addon.system(&mut own())).is_ok());
    breaker.exchange(&web, 0, unreachable()).unwrap();
    assert!(verdict(breaker.addon.system(&mut own())).is_err());
}

#[test]
fn metrics_show_the_worst_circuit_state_and_the_faults_of_an_entry() {
    let (breaker, web) = (breaker(2), container("web"));
    let shows = |value| {
        let line = format!("proxy_circuit_breaker_state{{upstream=\"*.example.com\"}} {value}");
        assert!(breaker.text().contains(&line), "{line}: {}", breaker.text());
    };
    shows(0);
    breaker.exchange(&web, 0, End::Status(500)).unwrap();
    shows(0);
    breaker.exchange(&web, 0, End::Status(500)).unwrap();
    shows(2);
    assert!(!breaker.breakers.all_closed());
    let failures = r#"proxy_circuit_breaker_failures_total{upstream="*.example.com"} 2"#;
    assert!(breaker.text().contains(failures));
    web.end();
    shows(0);
}
