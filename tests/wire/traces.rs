//! Spans that the proxy sends to an OpenTelemetry collector.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, SANDBOX, SOON, Setup, eventually};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A collector that keeps the documents that it receives.
pub struct Collector {
    origin: Origin,
    documents: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    pub fn start() -> Self {
        let documents: Arc<Mutex<Vec<Value>>> = Arc::default();
        let taken = Arc::clone(&documents);
        let origin = Origin::scripted(move |seen, body| {
            if seen.target == "/v1/traces" {
                assert_eq!(seen.header("content-type"), Some("application/json"));
                taken.lock().push(serde_json::from_str(body).unwrap());
            }
            Some((200, json!({})))
        });
        Self { origin, documents }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.origin.http)
    }

    pub fn spans(&self) -> Vec<Value> {
        let documents = self.documents.lock();
        let of = |document: &Value| document["resourceSpans"][0]["scopeSpans"][0]["spans"].clone();
        documents
            .iter()
            .flat_map(|one| of(one).as_array().unwrap().clone())
            .collect()
    }

    /// Waits for the span of the request to a path, and returns it.
    fn span_of(&self, path: &str) -> Value {
        let mut found = None;
        eventually("the span arrives", SOON, || {
            found = self
                .spans()
                .into_iter()
                .find(|span| attribute(span, "url.path") == path);
            found.is_some()
        });
        found.unwrap()
    }
}

/// The value of an attribute of a span; null if the span lacks it.
fn attribute(span: &Value, name: &str) -> Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == name);
    let value = found
        .map(|attribute| attribute["value"].clone())
        .unwrap_or_default();
    value
        .as_object()
        .and_then(|value| value.values().next())
        .cloned()
        .unwrap_or_default()
}

fn start(origin: &Origin, collector: &Collector) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.proxy["tracing"] = json!({ "otlp_endpoint": collector.url() });
    setup.start()
}

#[test]
fn a_flow_is_a_span_in_the_clients_trace_and_the_parent_of_upstream_spans() {
    let (origin, collector) = (Origin::start(), Collector::start());
    let proxy = start(&origin, &collector);
    let traceparent = format!("traceparent: {PARENT}");
    proxy.https_get(
        "api.example.com",
        "/echo/traced?token=private",
        &[&traceparent],
    );
    let span = collector.span_of("/echo/traced");
    assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(span["parentSpanId"], "00f067aa0ba902b7");
    let ours = span["spanId"].as_str().unwrap();
    let sent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{ours}-01");
    assert_eq!(origin.only().header("traceparent"), Some(sent.as_str()));
    let line = proxy.audited(json!({ "path": "/echo/traced" }));
    assert_eq!(line["flow"], ours, "the audit line has the id of the span");
    each_row(
        [
            ("http.request.method", json!("GET")),
            ("http.response.status_code", json!("200")),
            ("server.address", json!("api.example.com")),
            ("server.port", json!("443")),
            ("unified_proxy.container.id", json!(SANDBOX)),
            ("unified_proxy.outcome", json!("ok")),
        ],
        |(name, value)| {
            assert_eq!(attribute(&span, name), value, "{name}");
        },
    );
    let nanos = |key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap();
    assert!(nanos("endTimeUnixNano") > nanos("startTimeUnixNano"));
    assert!(
        !collector
            .documents
            .lock()
            .iter()
            .any(|one| one.to_string().contains("private"))
    );
}

#[test]
fn a_denial_is_a_span_and_a_request_without_traceparent_goes_upstream_without_one() {
    let (origin, collector) = (Origin::start(), Collector::start());
    let proxy = start(&origin, &collector);
    proxy.get("http://blocked.example.org/secret", &[]);
    let span = collector.span_of("/secret");
    assert_eq!(attribute(&span, "error.type"), "domain_not_allowed");
    assert_eq!(attribute(&span, "unified_proxy.addon"), "policy");
    assert!(span["parentSpanId"].is_null());
    proxy.https_get("api.example.com", "/echo/plain", &[]);
    assert_eq!(origin.only().header("traceparent"), None);
    collector.span_of("/echo/plain");
    // The requests that export spans are not traced.
    assert!(
        collector
            .spans()
            .iter()
            .all(|span| attribute(span, "url.path") != "/v1/traces")
    );
    eventually("the exported spans are counted", SOON, || {
        proxy.metric("proxy_trace_spans_total", &["exported"]) >= 2.0
    });
}

#[test]
fn requests_pass_while_the_collector_is_unreachable() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    setup.proxy["tracing"] = json!({ "otlp_endpoint": format!("http://{closed}") });
    let proxy = setup.start();
    assert_eq!(proxy.https_get("api.example.com", "/echo", &[]).status, 200);
    eventually("the refused span is counted", SOON, || {
        proxy.metric("proxy_trace_spans_total", &["refused"]) >= 1.0
    });
    proxy.audited(json!({ "path": "/v1/traces", "rule": "system: traces", "outcome": "failed" }));
}

#[test]
fn a_reload_starts_and_stops_the_export_of_spans() {
    let (origin, collector) = (Origin::start(), Collector::start());
    let proxy = Proxy::start(&origin);
    proxy.https_get("api.example.com", "/echo/before", &[]);
    let with = |endpoint: Value| {
        let path = proxy.path("config/proxy.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["tracing"] = json!({ "otlp_endpoint": endpoint });
        std::fs::write(&path, config.to_string()).unwrap();
        assert_eq!(proxy.admin("POST", "/internal/reload", None).status, 200);
    };
    with(json!(collector.url()));
    proxy.https_get("api.example.com", "/echo/during", &[]);
    collector.span_of("/echo/during");
    with(Value::Null);
    proxy.https_get("api.example.com", "/echo/after", &[]);
    proxy.audited(json!({ "path": "/echo/after" }));
    let paths: Vec<Value> = collector
        .spans()
        .iter()
        .map(|span| attribute(span, "url.path"))
        .collect();
    assert!(!paths.contains(&json!("/echo/before")) && !paths.contains(&json!("/echo/after")));
}
