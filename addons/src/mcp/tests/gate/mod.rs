//! The gate, with scripted policies and approvals.

mod arguments;
mod changed;
mod classification;
mod client_text;
mod intercepted;
mod people;
mod policy;
mod properties;
mod response;
mod rules;

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::contract::{
    BoxFuture, Code, Container, Decision, Decisions, Denial, Direction, Effect, Evaluation,
    EvaluatorError, FlowStart, FrameBody, Kind, Level, McpSubject, McpTarget, NoDefinitions,
    NoLedger, OwnedFlow, RpcOutcome, Standing, Subject, Unavailable,
};
use crate::fixtures::{client, container, ports::TestTasks};

type Answer = dyn Fn(&Value) -> Result<Vec<Decision>, EvaluatorError> + Send + Sync;

/// Scripted policies for `methods`. Records the inputs that the policies get.
pub(super) struct Policies {
    methods: Vec<&'static str>,
    answer: Box<Answer>,
    inputs: Mutex<Vec<Value>>,
}

impl Evaluator for Policies {
    fn covers(&self, method: &str) -> bool {
        self.methods.contains(&method)
    }

    fn evaluate<'a>(
        &'a self,
        _: &'a str,
        evaluation: Evaluation,
    ) -> BoxFuture<'a, Result<Decisions, EvaluatorError>> {
        Box::pin(async move {
            // Pending at its first poll, like an evaluation on another thread.
            tokio::task::yield_now().await;
            let members = evaluation.input.members();
            let members =
                members.map(|(name, json)| (name.to_owned(), serde_json::from_str(json).unwrap()));
            let input = Value::Object(members.collect());
            let answer = (self.answer)(&input);
            self.inputs.lock().push(input);
            let mut all = answer?.split_off(evaluation.decided);
            let redacts = all.iter().position(|one| one.modified.is_some());
            let left = redacts.map_or_else(Vec::new, |at| all.split_off(at + 1));
            let more = !left.is_empty();
            Ok(Decisions { all, more })
        })
    }
}

/// Records the levels and latches that the addon would write to disk.
#[derive(Default)]
pub(super) struct Records {
    pub(super) written: Mutex<Vec<String>>,
    pub(super) broken: bool,
    /// Called once, during the next write.
    pub(super) meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Records {
    fn write(&self, what: String) -> BoxFuture<'_, Result<(), Unavailable>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            if let Some(meanwhile) = self.meanwhile.lock().take() {
                meanwhile();
            }
            if self.broken {
                return Err(Unavailable);
            }
            self.written.lock().push(what);
            Ok(())
        })
    }
}

impl LeaseRecords for Records {
    fn reach<'a>(
        &'a self,
        _: &'a Arc<Container>,
        reached: Standing,
    ) -> BoxFuture<'a, Result<(), Unavailable>> {
        self.write(match reached.aborted {
            true => "latch".to_owned(),
            false => format!("level {}", reached.level.as_str()),
        })
    }
}

/// The addon with test doubles of its ports, and the container `web` whose messages it judges.
pub(super) struct Gate {
    pub(super) addon: Mcp,
    pub(super) records: Arc<Records>,
    pub(super) policies: Arc<Policies>,
    pub(super) web: Arc<Container>,
}

pub(super) fn settings() -> McpSettings {
    let mut settings = McpSettings::default();
    for name in ["kb", "weather"] {
        settings.servers.insert(name.into(), server(name));
    }
    settings
}

pub(super) fn with_rule(rule: OverrideRule) -> McpSettings {
    McpSettings {
        overrides: overriding("kb", "fetch", rule).overrides,
        ..settings()
    }
}

/// A gate without policies.
pub(super) fn gate(settings: McpSettings) -> Gate {
    with_policy(settings, &[], |_| Ok(Vec::new()))
}

pub(super) fn with_policy(
    settings: McpSettings,
    methods: &[&'static str],
    answer: impl Fn(&Value) -> Result<Vec<Decision>, EvaluatorError> + Send + Sync + 'static,
) -> Gate {
    let policies = Arc::new(Policies {
        methods: methods.to_vec(),
        answer: Box::new(answer),
        inputs: Mutex::default(),
    });
    let records = Arc::new(Records::default());
    let ports = McpPorts {
        evaluator: Arc::clone(&policies) as _,
        records: Arc::clone(&records) as _,
        ledger: Arc::new(NoLedger),
        accepted: Arc::new(NoDefinitions),
        tasks: Arc::new(TestTasks),
    };
    Gate {
        addon: Mcp::new(Arc::new(settings), ports),
        records,
        policies,
        web: container("web"),
    }
}

pub(super) fn decision(bundle: &str, effect: Effect) -> Decision {
    Decision {
        bundle: bundle.into(),
        revision: [0; 32],
        effect,
        reason: Some(format!("{bundle} says so").into()),
        modified: None,
        metadata: None,
        depends_on_call: false,
    }
}

pub(super) fn redact(bundle: &str, modified: impl Into<String>) -> Decision {
    Decision {
        modified: Some(raw(modified)),
        metadata: None,
        depends_on_call: false,
        ..decision(bundle, Effect::Redact)
    }
}

/// The definition of the tool `fetch`, without annotations.
pub(super) const FETCH: &str = r#"{"name":"fetch","inputSchema":{"type":"object"}}"#;

pub(super) fn start(container: &Arc<Container>, method: &str, name: Option<&str>) -> FlowStart {
    let subject = McpSubject {
        server: Some("kb".into()),
        method: method.into(),
        name: name.map(Arc::from),
    };
    let mut start = FlowStart::new(Kind::Mcp, client(), Subject::Mcp(subject), None);
    start.principal = Some(Arc::clone(container).into());
    start
}

pub(super) fn kb() -> McpTarget {
    McpTarget::Server("kb".into())
}

pub(super) fn to_fetch() -> McpTarget {
    McpTarget::of(&"kb".into(), Some(&tool(FETCH)))
}

/// A call of `fetch` with these params.
pub(super) fn call(params: impl Into<String>) -> Frame {
    Frame::request(
        Direction::ToServer,
        to_fetch(),
        "tools/call",
        Some(raw(params)),
    )
    .of_tool(tool(FETCH))
}

/// A call of `fetch` with these arguments.
pub(super) fn fetch(arguments: &Value) -> Frame {
    call(json!({ "name": "fetch", "arguments": arguments }).to_string())
}

/// The params that are sent to the server.
pub(super) fn params(frame: &Frame) -> Value {
    serde_json::from_str(frame.params().unwrap().get()).unwrap()
}

impl Gate {
    pub(super) fn flow(&self) -> OwnedFlow {
        start(&self.web, "tools/call", Some("fetch")).begin()
    }

    /// Calls `fetch`; returns the arguments that are sent to the server.
    pub(super) async fn fetch(&self, arguments: Value) -> Result<Value, Denial> {
        let (mut flow, mut frame) = (self.flow(), fetch(&arguments));
        self.request(&mut flow, &mut frame).await?;
        Ok(params(&frame)["arguments"].clone())
    }

    pub(super) async fn request(&self, flow: &mut OwnedFlow, frame: &mut Frame) -> Verdict {
        self.addon.judge_request(flow, frame).await
    }

    /// Calls `fetch` and judges the server's response.
    pub(super) async fn answer(&self, outcome: RpcOutcome) -> (OwnedFlow, Result<Frame, Denial>) {
        let mut flow = self.flow();
        let mut call = fetch(&json!({ "q": 1 }));
        let mut frame = Frame::response(Direction::ToServer, to_fetch(), "tools/call", outcome);
        let judged = match self.request(&mut flow, &mut call).await {
            Ok(()) => self.addon.judge_response(&mut flow, &mut frame).await,
            Err(denial) => Err(denial),
        };
        (flow, judged.map(|()| frame))
    }

    /// The inputs that the policies have received so far.
    pub(super) fn evaluated(&self) -> Vec<Value> {
        self.policies.inputs.lock().clone()
    }

    pub(super) fn written(&self) -> Vec<String> {
        self.records.written.lock().clone()
    }
}

pub(super) fn ok(result: Value) -> RpcOutcome {
    Ok(raw(result.to_string()))
}

/// The result of a judged response.
pub(super) fn result(frame: &Frame) -> Value {
    match &frame.body {
        FrameBody::Outcome(Ok(result)) => serde_json::from_str(result.get()).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn code<T>(judged: &Result<T, Denial>) -> Option<Code> {
    judged.as_ref().err().map(Denial::code)
}
