//! Exports spans to an OpenTelemetry collector: OTLP over HTTP, in JSON.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, USER_AGENT};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::{Collector, Span, SpanSink};
use crate::contract::{Outbound, System, SystemPorts};

/// Limit on the spans that wait for a slow or unreachable collector. Further spans are dropped and
/// counted.
const WAITING: usize = 4096;
/// Limit on the spans in one request.
const BATCH: usize = 512;
/// How long the first span of a request waits for others.
const WAIT: Duration = Duration::from_secs(2);

/// Makes the exporter of spans, and keeps it over reloads that do not change the collector.
pub struct Traces {
    ports: SystemPorts,
    spans: IntCounterVec,
    exporter: Mutex<Option<(Collector, Arc<Exporter>)>>,
}

impl Traces {
    /// Registers `proxy_trace_spans_total`.
    pub fn new(ports: SystemPorts, metrics: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new("proxy_trace_spans_total", "Spans of flows, by outcome.");
        let spans = IntCounterVec::new(opts, &["outcome"])?;
        metrics.register(Box::new(spans.clone()))?;
        for outcome in ["exported", "refused", "dropped"] {
            spans.with_label_values(&[outcome]);
        }
        Ok(Self {
            ports,
            spans,
            exporter: Mutex::default(),
        })
    }

    /// The sink of spans under this configuration; `None` without a collector. If the collector
    /// changed or was removed, the previous exporter sends its remaining spans and ends.
    pub fn sink(&self, collector: Option<&Collector>) -> Option<Arc<dyn SpanSink>> {
        let mut current = self.exporter.lock();
        let Some(collector) = collector else {
            *current = None;
            return None;
        };
        if let Some((same, exporter)) = &*current
            && same == collector
        {
            return Some(Arc::clone(exporter) as _);
        }
        let (waiting, spans) = mpsc::channel(WAITING);
        self.ports.tasks.spawn(Box::pin(export(
            spans,
            collector.clone(),
            Arc::clone(&self.ports.outbound),
            self.spans.clone(),
        )));
        let exporter = Arc::new(Exporter {
            waiting,
            spans: self.spans.clone(),
        });
        *current = Some((collector.clone(), Arc::clone(&exporter)));
        Some(exporter)
    }
}

struct Exporter {
    waiting: mpsc::Sender<Span>,
    spans: IntCounterVec,
}

impl SpanSink for Exporter {
    fn write(&self, span: Span) {
        if self.waiting.try_send(span).is_err() {
            self.spans.with_label_values(&["dropped"]).inc();
        }
    }
}

async fn export(
    mut waiting: mpsc::Receiver<Span>,
    collector: Collector,
    outbound: Arc<dyn Outbound>,
    spans: IntCounterVec,
) {
    let principal = Arc::new(System {
        name: "traces".into(),
        hosts: vec![collector.authority()],
        trust_private: true,
        url_secrets: collector.secrets.clone(),
    });
    let mut reachable = true;
    while let Some(first) = waiting.recv().await {
        let batch = fill(first, &mut waiting).await;
        let sent = send(&*outbound, &principal, &collector, &batch).await;
        if sent.is_ok() != reachable {
            reachable = sent.is_ok();
            match &sent {
                Ok(()) => tracing::info!(%collector, "the collector accepts traces again"),
                Err(why) => {
                    tracing::warn!(%collector, "cannot export traces; spans are dropped until the collector accepts them: {why}");
                }
            }
        }
        let outcome = if sent.is_ok() { "exported" } else { "refused" };
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        spans.with_label_values(&[outcome]).inc_by(count);
    }
}

/// Collects up to `BATCH` spans that arrive within `WAIT` of the first.
async fn fill(first: Span, waiting: &mut mpsc::Receiver<Span>) -> Vec<Span> {
    let mut batch = vec![first];
    let until = Instant::now() + WAIT;
    while batch.len() < BATCH
        && let Ok(Some(span)) = timeout_at(until, waiting.recv()).await
    {
        batch.push(span);
    }
    batch
}

async fn send(
    outbound: &dyn Outbound,
    principal: &Arc<System>,
    collector: &Collector,
    batch: &[Span],
) -> Result<(), String> {
    let body = Bytes::from(document(batch).to_string());
    let request = Request::post(collector.traces_url())
        .header(USER_AGENT, "unified-proxy")
        .header(CONTENT_TYPE, "application/json")
        .body(body);
    let request = request.map_err(|error| error.to_string())?;
    let response = outbound.send(principal, request).await;
    let response = response.map_err(|error| error.to_string())?;
    let status = response.status();
    let taken = status.is_success().then_some(());
    taken.ok_or_else(|| format!("the collector answered {status}"))
}

/// An `ExportTraceServiceRequest`: <https://opentelemetry.io/docs/specs/otlp/>.
fn document(batch: &[Span]) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [
        attribute("service.name", json!({ "stringValue": "unified-proxy" })),
        attribute("service.version", json!({ "stringValue": version })),
    ];
    let spans: Vec<Value> = batch.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "unified-proxy", "version": version }, "spans": spans }],
    }] })
}

fn span(span: &Span) -> Value {
    const SERVER: u8 = 2;
    const ERROR: u8 = 2;
    // This process encoded the line, so it parses.
    let line: Value = serde_json::from_slice(&span.line).unwrap_or_default();
    let text = |key| line.get(key).and_then(Value::as_str);
    let what = text("method").or(text("kind")).unwrap_or_default();
    let name = format!("{what} {}", text("host").unwrap_or_default());
    let mut value = json!({
        "traceId": format!("{:032x}", span.trace),
        "spanId": format!("{:016x}", span.id),
        "name": name,
        "kind": SERVER,
        "startTimeUnixNano": nanos(span.at),
        "endTimeUnixNano": nanos(span.at + span.duration),
        "attributes": attributes(&line),
        "status": if text("outcome") == Some("failed") { json!({ "code": ERROR }) } else { json!({}) },
    });
    if let (Some(parent), Some(fields)) = (span.parent, value.as_object_mut()) {
        fields.insert("parentSpanId".to_owned(), format!("{parent:016x}").into());
    }
    value
}

/// The attributes of a span, each with its key in the audit line. The names are those of
/// OpenTelemetry's semantic conventions. If the conventions have no name for a key, the name begins
/// with `unified_proxy`.
const ATTRIBUTES: [(&str, &str); 15] = [
    ("unified_proxy.kind", "kind"),
    ("unified_proxy.outcome", "outcome"),
    ("unified_proxy.container.id", "container_id"),
    ("unified_proxy.addon", "addon"),
    ("unified_proxy.rule", "rule"),
    ("client.address", "client"),
    ("http.request.method", "method"),
    ("server.address", "host"),
    ("server.port", "port"),
    ("url.path", "path"),
    ("http.response.status_code", "status"),
    ("error.type", "code"),
    ("http.request.body.size", "bytes_in"),
    ("http.response.body.size", "bytes_out"),
    ("network.peer.address", "upstream_addr"),
];

fn attributes(line: &Value) -> Vec<Value> {
    let value = |key| match line.get(key)? {
        Value::Number(number) => Some(json!({ "intValue": number.to_string() })),
        Value::String(address) if key == "upstream_addr" => {
            let address: SocketAddr = address.parse().ok()?;
            Some(json!({ "stringValue": address.ip().to_string() }))
        }
        text => Some(json!({ "stringValue": text })),
    };
    let all = ATTRIBUTES.iter();
    all.filter_map(|(name, key)| Some(attribute(name, value(*key)?)))
        .collect()
}

fn attribute(name: &str, value: Value) -> Value {
    json!({ "key": name, "value": value })
}

fn nanos(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}
