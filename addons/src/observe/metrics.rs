//! Counts flows as they end.

use http::StatusCode;
use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use crate::contract::{Addon, Code, Flow, Kind, Order, Outcome, names};

/// Upper bounds of the duration buckets, in seconds: from an immediate response to a model's long
/// completion.
const DURATION_BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0,
];

const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT",
];

const MCP_METHODS: [&str; 31] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "roots/list",
    "sampling/createMessage",
    "elicitation/create",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/message",
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/roots/list_changed",
    "notifications/subscriptions/acknowledged",
];

const RECORD_TYPES: [&str; 13] = [
    "A", "AAAA", "CNAME", "HTTPS", "SVCB", "MX", "TXT", "NS", "SOA", "PTR", "SRV", "CAA", "ANY",
];

/// The metrics of flows. Made once and kept over reloads.
pub struct Metrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    dns_queries: IntCounterVec,
    denials: IntCounterVec,
    injected: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics. Series whose labels do not depend on the configuration are created
    /// with 0.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let durations = HistogramOpts::new(
            "proxy_request_duration_seconds",
            "How long requests took, by allowlist entry",
        )
        .buckets(DURATION_BUCKETS.to_vec());
        let metrics = Self {
            requests: counters(
                registry,
                "proxy_requests_total",
                "Requests, tunnels, WebSockets and MCP messages that ended, by allowlist entry or MCP server",
                &["method", "upstream", "status", "outcome"],
            )?,
            durations: registered(registry, HistogramVec::new(durations, &["upstream"])?)?,
            dns_queries: counters(
                registry,
                "proxy_dns_queries_total",
                "DNS questions",
                &["type", "outcome"],
            )?,
            denials: counters(
                registry,
                "proxy_denials_total",
                "Flows that were denied or failed, by code",
                &["code"],
            )?,
            injected: counters(
                registry,
                "proxy_credentials_injected_total",
                "Requests that a credential was added to",
                &["credential"],
            )?,
        };
        for code in Code::ALL {
            metrics.denials.with_label_values(&[code.as_str()]);
        }
        for record_type in RECORD_TYPES.iter().chain(&["other"]) {
            for outcome in Outcome::LABELS {
                let labels = [*record_type, outcome];
                metrics.dns_queries.with_label_values(&labels);
            }
        }
        Ok(metrics)
    }

    /// Creates the series of a configuration that are missing, with 0: one for the label of each
    /// allowlist entry, and one for the name of each credential.
    pub fn create_configured<'c>(
        &self,
        upstreams: impl Iterator<Item = &'c str>,
        credentials: impl Iterator<Item = &'c str>,
    ) {
        for upstream in upstreams {
            self.durations.with_label_values(&[upstream]);
        }
        for credential in credentials {
            self.injected.with_label_values(&[credential]);
        }
    }

    /// Counts a request, a tunnel, a WebSocket or an MCP message.
    fn count(&self, flow: &Flow, method: &str, outcome: &Outcome) {
        let status = StatusCode::from_u16(outcome.status).ok();
        let status = status_label(status.as_ref());
        let labels = [method, flow.upstream_label(), status, outcome.label()];
        self.requests.with_label_values(&labels).inc();
    }

    fn count_request(&self, flow: &Flow, outcome: &Outcome) {
        let method = known(&METHODS, flow.record().method.as_deref());
        self.count(flow, method, outcome);
        // The duration of a tunnel or a WebSocket says nothing about an upstream.
        if flow.kind == Kind::Http {
            let durations = self.durations.with_label_values(&[flow.upstream_label()]);
            durations.observe(outcome.duration.as_secs_f64());
        }
        let names = flow.record().credential.iter();
        for credential in names.flat_map(|names| names.split(',')) {
            self.injected.with_label_values(&[credential]).inc();
        }
    }
}

impl Addon for Metrics {
    fn name(&self) -> &'static str {
        names::METRICS
    }

    fn order(&self) -> Order {
        Order {
            before: &[names::IDENTITY],
            ..Order::default()
        }
    }

    fn finished(&self, flow: &Flow, outcome: &Outcome) {
        if flow.kind == Kind::Dns {
            let record_type = known(&RECORD_TYPES, flow.record().method.as_deref());
            let labels = [record_type, outcome.label()];
            self.dns_queries.with_label_values(&labels).inc();
        } else if let Some(subject) = flow.mcp() {
            let method = known(&MCP_METHODS, Some(&subject.method));
            self.count(flow, method, outcome);
        } else {
            self.count_request(flow, outcome);
        }
        if let Some(denial) = &outcome.denial {
            let code = denial.code().as_str();
            self.denials.with_label_values(&[code]).inc();
        }
    }
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// The text if it is a known label, otherwise `other`, so that clients cannot create series.
fn known<'a>(labels: &[&'a str], text: Option<&str>) -> &'a str {
    let found = labels.iter().find(|label| Some(**label) == text);
    found.copied().unwrap_or("other")
}

/// The `status` label. An upstream chooses the status, so only registered statuses get their own
/// series.
fn status_label(status: Option<&StatusCode>) -> &str {
    match status {
        Some(status) if status.canonical_reason().is_some() => status.as_str(),
        Some(_) => "other",
        None => "none",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use prometheus::TextEncoder;
    use testkit::each_row;

    use super::*;
    use crate::contract::Denial;
    use crate::fixtures::{container, entry, flow, mcp_flow};

    fn metrics() -> (Metrics, Registry) {
        let registry = Registry::new();
        (Metrics::new(&registry).unwrap(), registry)
    }

    fn outcome(status: u16, code: Option<Code>) -> Outcome {
        Outcome {
            status,
            denial: code.map(|code| Denial::new(code, "no")),
            aborted: false,
            duration: Duration::from_millis(30),
        }
    }

    fn text(registry: &Registry) -> String {
        TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap()
    }

    fn finish(metrics: &Metrics, kind: Kind, method: &str, outcome: &Outcome) {
        let mut flow = flow(kind, "api.example.com");
        flow.record_mut().method = Some(method.to_owned().into());
        metrics.finished(&flow, outcome);
    }

    #[test]
    fn each_flow_is_counted_in_the_series_of_its_labels() {
        let (metrics, registry) = metrics();
        finish(&metrics, Kind::Http, "GET", &outcome(200, None));
        finish(
            &metrics,
            Kind::Tunnel,
            "CONNECT",
            &outcome(403, Some(Code::DomainNotAllowed)),
        );
        finish(&metrics, Kind::Dns, "AAAA", &outcome(0, None));
        let mut injecting = flow(Kind::Http, "api.example.com");
        injecting.add_credential(&"anthropic".into());
        injecting.add_credential(&"billing".into());
        metrics.finished(&injecting, &outcome(200, None));
        let text = text(&registry);
        each_row(
            [
                r#"proxy_requests_total{method="GET",outcome="ok",status="200",upstream="api.example.com"} 1"#,
                r#"proxy_requests_total{method="CONNECT",outcome="denied",status="403",upstream="api.example.com"} 1"#,
                r#"proxy_dns_queries_total{outcome="ok",type="AAAA"} 1"#,
                r#"proxy_denials_total{code="domain_not_allowed"} 1"#,
                r#"proxy_request_duration_seconds_count{upstream="api.example.com"} 2"#,
                r#"proxy_credentials_injected_total{credential="anthropic"} 1"#,
                r#"proxy_credentials_injected_total{credential="billing"} 1"#,
            ],
            |line| {
                assert!(text.contains(line), "{line} is not in\n{text}");
            },
        );
    }

    #[test]
    fn messages_are_counted_by_server_and_known_method() {
        let (metrics, registry) = metrics();
        let web = container("web");
        let denied = outcome(403, Some(Code::PolicyDeniedContinue));
        metrics.finished(&mcp_flow(&web, Some("kb"), "tools/call"), &denied);
        metrics.finished(&mcp_flow(&web, None, "tools/list"), &outcome(200, None));
        for n in 0..50 {
            let made_up = mcp_flow(&web, Some("kb"), &format!("x/{n}"));
            metrics.finished(&made_up, &outcome(200, None));
        }
        let text = text(&registry);
        each_row(
            [
                r#"proxy_requests_total{method="tools/call",outcome="denied",status="403",upstream="kb"} 1"#,
                r#"proxy_requests_total{method="tools/list",outcome="ok",status="200",upstream="none"} 1"#,
                r#"proxy_requests_total{method="other",outcome="ok",status="200",upstream="kb"} 50"#,
                r#"proxy_denials_total{code="policy_denied_continue"} 1"#,
            ],
            |line| {
                assert!(text.contains(line), "{line} is not in\n{text}");
            },
        );
        assert!(!text.contains("proxy_request_duration_seconds_count{upstream=\"kb\"}"));
    }

    #[test]
    fn outcome_labels_has_the_label_of_every_outcome() {
        let denied = outcome(403, Some(Code::RuleDenied));
        let failed = outcome(502, Some(Code::UpstreamTls));
        let aborted = Outcome {
            aborted: true,
            ..outcome(200, None)
        };
        let labels = [outcome(200, None), denied, failed, aborted].map(|one| one.label());
        assert_eq!(labels, Outcome::LABELS);
    }

    #[test]
    fn flows_of_entries_with_the_same_label_are_counted_in_the_same_series() {
        let (metrics, registry) = metrics();
        for _before_and_after_a_reload in 0..2 {
            let entry = entry("api.example.com");
            for _ in 0..3 {
                let mut injecting = flow(Kind::Http, "api.example.com");
                injecting.record_mut().method = Some("GET".into());
                injecting.record_mut().credential = Some("anthropic".into());
                injecting.start_mut().entry = Some(Arc::clone(&entry));
                metrics.finished(&injecting, &outcome(200, None));
            }
        }
        let text = text(&registry);
        each_row(
            [
                r#"proxy_requests_total{method="GET",outcome="ok",status="200",upstream="api.example.com"} 6"#,
                r#"proxy_request_duration_seconds_count{upstream="api.example.com"} 6"#,
                r#"proxy_credentials_injected_total{credential="anthropic"} 6"#,
            ],
            |line| {
                assert!(text.contains(line), "{line} is not in\n{text}");
            },
        );
    }

    #[test]
    fn every_registered_status_has_its_own_series() {
        let (metrics, registry) = metrics();
        let entry = entry("api.example.com");
        let has_name = |n: &u16| {
            StatusCode::from_u16(*n)
                .unwrap()
                .canonical_reason()
                .is_some()
        };
        let statuses = || (200..600).filter(has_name);
        for status in statuses().chain(statuses()) {
            let mut flow = flow(Kind::Http, "api.example.com");
            flow.start_mut().entry = Some(Arc::clone(&entry));
            flow.record_mut().credential = Some(format!("key-{status}").into());
            metrics.finished(&flow, &outcome(status, None));
        }
        let text = text(&registry);
        for status in statuses() {
            let requests = format!(r#"status="{status}",upstream="api.example.com"}} 2"#);
            let injected = format!(r#"{{credential="key-{status}"}} 2"#);
            assert!(
                text.contains(&requests) && text.contains(&injected),
                "{status}: {text}"
            );
        }
    }

    #[test]
    fn clients_and_upstreams_create_no_labels() {
        let (metrics, registry) = metrics();
        for n in 0..50 {
            finish(
                &metrics,
                Kind::Http,
                &format!("M{n}"),
                &outcome(700 + n, None),
            );
            finish(&metrics, Kind::Dns, &format!("TYPE{n}"), &outcome(0, None));
            let mut stray = flow(Kind::Http, &format!("{n}.example.com"));
            stray.start_mut().entry = None;
            metrics.finished(&stray, &outcome(403, None));
        }
        let text = text(&registry);
        let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(series("proxy_requests_total{"), 2, "{text}");
        let made_up = text
            .lines()
            .filter(|line| line.contains("TYPE") && !line.starts_with('#'));
        assert_eq!(made_up.count(), 0, "{text}");
        let other = r#"proxy_dns_queries_total{outcome="ok",type="other"} 50"#;
        assert!(text.contains(other), "{text}");
    }
}
