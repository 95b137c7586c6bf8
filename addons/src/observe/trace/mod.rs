//! Makes a span for each flow of a container, in the trace of the client.

mod collector;
mod export;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;

use super::line::AuditLine;
use crate::contract::{
    Addon, Direction, Flow, Frame, FrameBody, Intercept, Order, Outcome, Request, SpanParent, Step,
    names,
};
use crate::json::Members;

pub use collector::Collector;
pub use export::Traces;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The member of an MCP message's params that holds metadata.
const META: &str = "_meta";
const SAMPLED: u8 = 1;

/// Takes spans. Must not block, since threads that serve connections call it as flows end.
pub trait SpanSink: Send + Sync {
    /// Takes a span, or drops and counts it.
    fn write(&self, span: Span);
}

/// The span of a flow of a container.
#[derive(Clone, Debug)]
pub struct Span {
    /// The trace id.
    pub trace: u128,
    /// The id of the client's span; `None` for a flow without trace context.
    pub parent: Option<u64>,
    /// The id of the span, equal to the flow's, so that the audit log and the trace can be matched.
    pub id: u64,
    /// The flow's line of the audit log, as JSON.
    pub line: Vec<u8>,
    /// When the flow started.
    pub at: SystemTime,
    /// The duration of the flow.
    pub duration: Duration,
}

/// Makes a span for each flow of a container. For a request with W3C trace context, the span is a
/// child of the client's span and the parent of the upstream's span. The span is not exported if
/// the context is not sampled. A request without context starts a trace, and is sent unchanged.
pub struct Trace {
    sink: Arc<dyn SpanSink>,
}

impl Trace {
    /// Builds the addon; `sink` takes the spans.
    #[must_use]
    pub fn new(sink: Arc<dyn SpanSink>) -> Self {
        Self { sink }
    }
}

impl Addon for Trace {
    fn name(&self) -> &'static str {
        names::TRACE
    }

    fn order(&self) -> Order {
        Order {
            before: &[names::IDENTITY],
            ..Order::default()
        }
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        if let Some(context) = Context::of(&request.headers)
            && let Ok(ours) = HeaderValue::try_from(context.text(flow.id().number()))
        {
            request.headers.insert(TRACEPARENT, ours);
            flow.put_slot(context);
        }
        Step::PASS
    }

    fn mcp_request<'a>(&'a self, flow: &'a mut Flow, frame: &'a mut Frame) -> Step<'a> {
        if frame.direction == Direction::ToServer
            && let Some((context, params)) = frame
                .params()
                .and_then(|params| Context::with_parent(params, flow.id().number()))
        {
            frame.body = FrameBody::Params(Some(params));
            flow.put_slot(context);
        }
        link_intercept(flow);
        Step::PASS
    }

    fn mcp_report<'a>(&'a self, flow: &'a mut Flow, _frame: &'a mut Frame) -> Step<'a> {
        link_intercept(flow);
        Step::PASS
    }

    fn finished(&self, flow: &Flow, outcome: &Outcome) {
        // No span for unknown sources, which could fill the collector. No span for the proxy's own
        // requests either: some of them export spans, and a span for an export would cause another
        // export.
        if flow.known_container().is_none() {
            return;
        }
        let context = flow.find_slot::<Context>();
        if context.is_some_and(|context| context.flags & SAMPLED == 0) {
            return;
        }
        let id = flow.id().number();
        self.sink.write(Span {
            trace: context.map_or_else(|| begun_by(id), |context| context.trace),
            parent: context.map(|context| context.parent),
            id,
            line: AuditLine::of(flow, outcome).encode().json,
            at: flow.at,
            duration: outcome.duration,
        });
    }
}

/// Puts the flow of a message of the interceptor API into the trace of its caller, and tells the
/// interceptor the context for the call at the gateway.
fn link_intercept(flow: &mut Flow) {
    let Some(intercept) = flow.find_slot::<Intercept>() else {
        return;
    };
    if flow.find_slot::<Context>().is_none()
        && let Some(context) = intercept.traceparent.as_deref().and_then(Context::parse)
    {
        flow.put_slot(context);
    }
    let id = flow.id().number();
    let context = flow.find_slot::<Context>().copied().unwrap_or(Context {
        trace: begun_by(id),
        parent: id,
        flags: SAMPLED,
    });
    flow.put_slot(SpanParent(context.text(id).into()));
}

/// The trace id for a flow without context. The id must be unique, but need not be secret.
fn begun_by(flow: u64) -> u128 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    let process = *PROCESS.get_or_init(|| RandomState::new().build_hasher().finish() | 1);
    u128::from(process) << 64 | u128::from(flow)
}

/// The trace context of a client: <https://www.w3.org/TR/trace-context/>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context {
    trace: u128,
    parent: u64,
    flags: u8,
}

impl Context {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let only = values.next().filter(|_| values.next().is_none());
        Self::parse(only?.to_str().ok()?)
    }

    /// The context in a message's `_meta`, and the params for the server, in which `span` is the
    /// parent. `None` without a valid context.
    fn with_parent(params: &RawValue, span: u64) -> Option<(Self, Box<RawValue>)> {
        let members = Members::read(params).ok()?;
        let meta = members.members(META).ok()??;
        let context = Self::parse(&meta.text(TRACEPARENT.as_str())?)?;
        let ours = format!("\"{}\"", context.text(span));
        let meta = meta.with(TRACEPARENT.as_str(), &ours);
        let params = RawValue::from_string(members.with(META, &meta)).ok()?;
        Some((context, params))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut hex = |length: usize| {
            let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let part = parts.next()?;
            (part.len() == length && part.bytes().all(lower)).then_some(part)
        };
        let (version, trace, parent, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let more = parts.next().is_some();
        // Later versions may append fields; version 00 has none.
        if version == "ff" || (version == "00" && more) {
            return None;
        }
        let context = Self {
            trace: u128::from_str_radix(trace, 16).ok()?,
            parent: u64::from_str_radix(parent, 16).ok()?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        };
        (context.trace != 0 && context.parent != 0).then_some(context)
    }

    /// The context for the upstream, with `span` as the parent.
    fn text(self, span: u64) -> String {
        format!("00-{:032x}-{span:016x}-{:02x}", self.trace, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use serde_json::Value;
    use testkit::each_row;

    use super::*;
    use crate::contract::{Kind, McpTarget, Principal, System};
    use crate::fixtures::{container, flow_of, request};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[derive(Default)]
    struct Kept(Mutex<Vec<Span>>);

    impl SpanSink for Kept {
        fn write(&self, span: Span) {
            self.0.lock().push(span);
        }
    }

    fn outcome() -> Outcome {
        Outcome {
            status: 200,
            denial: None,
            aborted: false,
            duration: Duration::from_millis(5),
        }
    }

    /// Sends a request with these `traceparent` fields. Returns the fields that are sent on, and
    /// the span.
    fn traced(
        fields: &[&'static str],
        change: impl FnOnce(&mut Flow),
    ) -> (Vec<String>, Option<Span>) {
        let kept = Arc::new(Kept::default());
        let trace = Trace::new(Arc::clone(&kept) as _);
        let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
        change(&mut flow);
        let mut request = request("/", &[]);
        for field in fields {
            request
                .headers
                .append(TRACEPARENT, HeaderValue::from_static(field));
        }
        let step = trace.request(&mut flow, &mut request);
        drop(step);
        trace.finished(&flow, &outcome());
        let sent = request.headers.get_all(TRACEPARENT).iter();
        let sent = sent
            .map(|value| value.to_str().unwrap().to_owned())
            .collect();
        let span = kept.0.lock().pop();
        (sent, span)
    }

    #[test]
    fn a_message_to_a_server_is_traced_as_a_child_of_its_context_if_the_context_is_valid() {
        let rows = [
            (Direction::ToServer, PARENT, true),
            (Direction::ToClient, PARENT, false),
            (Direction::ToServer, "00-0-0-00", false),
        ];
        each_row(rows, |(direction, parent, is_used)| {
            let kept = Arc::new(Kept::default());
            let trace = Trace::new(Arc::clone(&kept) as _);
            let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
            let params =
                format!("{{\"n\":1.0,\"_meta\":{{\"x\":1e3,\"traceparent\":\"{parent}\"}}}}");
            let raw = RawValue::from_string(params.clone()).unwrap();
            let target = McpTarget::Server("kb".into());
            let mut frame = Frame::request(direction, target, "tools/call", Some(raw));
            let step = trace.mcp_request(&mut flow, &mut frame);
            drop(step);
            trace.finished(&flow, &outcome());
            let sent = frame.params().unwrap().get().to_owned();
            let span = kept.0.lock().pop().unwrap();
            if is_used {
                let ours = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016x}-01", span.id);
                assert_eq!(sent, params.replace(PARENT, &ours));
                assert_eq!(span.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
                assert_eq!(span.parent, Some(0x00f0_67aa_0ba9_02b7));
            } else {
                assert_eq!((sent, span.parent), (params, None));
            }
        });
    }

    #[test]
    fn a_request_with_context_gets_a_child_span_that_is_sent_as_the_parent() {
        let (sent, span) = traced(&[PARENT], |_| ());
        let span = span.unwrap();
        assert_eq!(span.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(span.parent, Some(0x00f0_67aa_0ba9_02b7));
        let ours = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016x}-01", span.id);
        assert_eq!(sent, [ours]);
        let line: Value = serde_json::from_slice(&span.line).unwrap();
        assert_eq!(line["host"], "api.example.com");
    }

    #[test]
    fn a_request_without_context_starts_a_trace_and_is_sent_unchanged() {
        let (sent, span) = traced(&[], |_| ());
        let span = span.unwrap();
        assert!(sent.is_empty());
        assert_eq!(span.parent, None);
        assert_eq!(span.trace as u64, span.id);
        assert_ne!(span.trace >> 64, 0);
    }

    #[test]
    fn unsampled_context_is_propagated_but_its_span_is_not_exported() {
        let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let (sent, span) = traced(&[unsampled], |_| ());
        assert!(span.is_none());
        assert!(sent[0].ends_with("-00") && sent[0] != unsampled);
    }

    #[test]
    fn invalid_context_is_sent_unchanged() {
        each_row(
            [
                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
                "",
            ],
            |wrong| {
                let (sent, span) = traced(&[wrong], |_| ());
                assert_eq!(sent, [wrong]);
                assert_eq!(span.unwrap().parent, None, "{wrong}");
            },
        );
        // A later version may have further fields.
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(traced(&[later], |_| ()).1.unwrap().parent.is_some());
        let (twice, span) = traced(&[PARENT, PARENT], |_| ());
        assert_eq!((twice.len(), span.unwrap().parent), (2, None));
    }

    #[test]
    fn the_proxys_own_requests_and_requests_of_unknown_sources_have_no_span() {
        let (_, span) = traced(&[], |flow| {
            flow.start_mut().principal = Some(Principal::System(Arc::new(System {
                name: "traces".into(),
                hosts: Vec::new(),
                trust_private: true,
                url_secrets: Default::default(),
            })));
        });
        assert!(span.is_none());
        let (_, span) = traced(&[], |flow| flow.start_mut().principal = None);
        assert!(span.is_none());
    }

    /// The context for the call at the gateway after a question with this `traceparent`, and the
    /// span of the question.
    fn question(traceparent: Option<&str>) -> (String, Span) {
        let kept = Arc::new(Kept::default());
        let trace = Trace::new(Arc::clone(&kept) as _);
        let mut flow = flow_of(&container("web"), Kind::Mcp, "unified-proxy");
        flow.put_slot(Intercept {
            traceparent: traceparent.map(Box::from),
            ..Intercept::default()
        });
        let target = McpTarget::Server("kb".into());
        let mut frame = Frame::request(Direction::ToServer, target, "tools/call", None);
        assert!(trace.mcp_request(&mut flow, &mut frame).ready().is_some());
        let parent = flow.take_slot::<SpanParent>().unwrap();
        trace.finished(&flow, &outcome());
        (parent.0.into(), kept.0.lock().remove(0))
    }

    // Feature: unified-sidecar, Property 11: Trace Context Propagation
    #[test]
    fn the_call_after_a_question_is_in_the_trace_of_the_question() {
        each_row([Some(PARENT), None, Some("00-nonsense")], |traceparent| {
            let (parent, span) = question(traceparent);
            let next = Context::parse(&parent).unwrap();
            assert_eq!((next.trace, next.parent), (span.trace, span.id));
            let is_in_callers_trace = span.trace == 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
            assert_eq!(is_in_callers_trace, traceparent == Some(PARENT));
        });
    }
}
