//! One HTTP request of a known container.

use std::sync::Arc;

use addons::contract::{
    Code, Container, Denial, Direction, Frame, LiveFlow, McpSubject, McpTarget, Principal,
    RpcError, names,
};
use addons::identity::claimed_id;
use addons::json::Members;
use http::{HeaderMap, HeaderName};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::sync::mpsc;

use super::super::caller::{Caller, LogLevel, TraceContext};
use super::super::core::{ClientRequest, FoundTool};
use super::super::error::rpc_error;
use super::super::event::{Event, Events};
use super::super::version::{Era, Version};
use super::Gateway;
use super::call::Call;
use super::header::only;
use super::lease::LeaseState;
use super::memory::Memory;
use super::progress::{CallProgress, token_of};
use crate::http::{OriginRequest, Session};

/// The header field with which a call names its request context.
const CONTEXT: HeaderName = HeaderName::from_static("mcp-request-context");
/// The begin of [`CONTEXT_KEY`].
const PROJECT: &str = "unified-proxy";
/// The key of `_meta` with which a call names its request context.
const CONTEXT_KEY: &str = "unified-proxy/request_id";

/// A request and its container.
pub struct Visit<'a> {
    pub gateway: &'a Gateway,
    pub request: &'a mut OriginRequest,
    pub container: Arc<Container>,
    principal: Principal,
    pub lease: Arc<LeaseState>,
    pub memory: Memory,
}

/// A client's description of itself.
pub struct ClientDescription {
    pub version: Version,
    pub capabilities: Arc<RawValue>,
    pub info: Option<Arc<RawValue>>,
    pub session: Option<Arc<str>>,
    pub log_level: Option<LogLevel>,
    pub takes_tasks: bool,
}

impl<'a> Visit<'a> {
    /// Identifies the container of a request.
    pub async fn begin(
        gateway: &'a Gateway,
        request: &'a mut OriginRequest,
    ) -> Result<Visit<'a>, Denial> {
        identify(request).await?;
        let session = &request.session;
        let (Some(container), Some(principal)) = (&session.container, &session.principal) else {
            return Err(session.unknown_source());
        };
        Ok(Self {
            gateway,
            container: Arc::clone(container),
            principal: principal.clone(),
            lease: LeaseState::of(container),
            memory: Memory::of(session),
            request,
        })
    }

    pub fn session(&self) -> &Arc<Session> {
        &self.request.session
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.request.head.headers
    }

    pub fn caller(&self, described: ClientDescription) -> Arc<Caller> {
        Arc::new(Caller {
            client: self.session().client.clone(),
            principal: self.principal.clone(),
            container: Arc::clone(&self.container),
            version: described.version,
            capabilities: described.capabilities,
            info: described.info,
            session: described.session,
            log_level: described.log_level,
            takes_tasks: described.takes_tasks,
        })
    }

    /// Begins a client's request. Its message stays charged to the container until the call has an
    /// outcome or is dropped, even if the HTTP request ends before: with status 202, when the call is
    /// suspended, or when the client closes the stream. `tool` as in [`ClientRequest`].
    pub fn call(
        &self,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
        tool: Option<FoundTool>,
    ) -> Call {
        let (sender, events) = self.events();
        let sender = sender.of_message(self.request.reservation());
        let token = match caller.version.era() {
            Era::Legacy => token_of(params.as_deref()),
            // Set with the rest of the envelope, which is read already.
            Era::Modern => None,
        };
        let progress = CallProgress::new(token.as_deref());
        let request = ClientRequest {
            tool,
            ..self.client_request(caller, method, params, sender.clone())
        };
        let core = Arc::clone(&self.gateway.core);
        if &*request.method == "tools/call"
            && let Some(id) = self.context_id(request.params.as_deref())
            && let Some(context) = core.context(&self.container, &id)
        {
            let _ = sender.call.context.set(context);
        }
        let (lease, outcome) = (Arc::clone(&self.lease), core.request(request));
        let reported = async move {
            let outcome = outcome.await;
            if let Err(error) = &outcome {
                lease.own_denials.add_error(error);
            }
            outcome
        };
        Call::new(reported, sender, events, progress)
    }

    /// Creates a queue of events that are charged to the container's memory.
    pub fn events(&self) -> (Events, mpsc::Receiver<Event>) {
        Events::charged(Arc::new(self.memory.clone()))
    }

    /// A client's request to the core, whose events go to `events`.
    pub fn client_request(
        &self,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
        events: Events,
    ) -> ClientRequest {
        ClientRequest {
            caller,
            method,
            params,
            tool: None,
            trace: self.trace(),
            events,
        }
    }

    /// The id of the request context that a call names, in a header or in `_meta`.
    fn context_id(&self, params: Option<&RawValue>) -> Option<Box<str>> {
        if let Some(id) = only(self.headers(), &CONTEXT).ok()? {
            return Some(id.into());
        }
        // Avoids parsing: few calls name a context. The slash may be escaped.
        let params = params.filter(|params| params.get().contains(PROJECT))?;
        let params = Members::read(params).ok()?;
        let meta = params.members("_meta").ok()??;
        meta.text(CONTEXT_KEY).map(|id| (&*id).into())
    }

    /// The `traceparent` of the HTTP request.
    pub fn traceparent(&self) -> Option<Box<str>> {
        Some(self.trace()?.parent.into())
    }

    fn trace(&self) -> Option<TraceContext> {
        let headers = self.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        Some(TraceContext {
            parent: text("traceparent")?.to_owned(),
            state: text("tracestate").map(str::to_owned),
        })
    }

    /// Records that a message is denied as malformed, although the client gets status 202.
    pub fn note(&self, method: &str, sentence: &'static str) {
        let mut live = self.flow(method);
        live.denied(&Denial::new(Code::MalformedRequest, sentence).by(names::PROXY));
    }

    /// Begins the flow of a request that the gateway itself answers, and judges the request.
    pub async fn judge(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<LiveFlow, RpcError> {
        let mut live = self.flow(method);
        let frame = Frame::request(Direction::ToServer, McpTarget::Gateway, method, params);
        match live.chain.mcp_request(&mut live.flow, frame).await {
            Ok(_permit) => {
                live.answered(200);
                Ok(live)
            }
            Err(denial) => {
                live.denied(&denial);
                Err(rpc_error(&denial))
            }
        }
    }

    fn flow(&self, method: &str) -> LiveFlow {
        let chain = self.request.snapshot.chain();
        let mut start = chain.for_mcp(self.session().client.clone(), own_subject(method));
        start.started = self.request.started();
        start.principal = Some(self.principal.clone());
        let mut live = LiveFlow::begin(chain, start);
        live.record().path = Some(self.request.head.uri.path().into());
        live
    }
}

/// The subject of a message that the gateway itself answers.
pub fn own_subject(method: &str) -> McpSubject {
    McpSubject {
        server: None,
        method: method.into(),
        name: None,
    }
}

/// Checks that the request comes from the connection's container. If a quick check cannot confirm
/// this, the chain judges the request in a dry run. Denies the request if the chain denies it, or
/// finds a container other than that of the connection.
async fn identify(request: &OriginRequest) -> Result<(), Denial> {
    let (session, snapshot) = (&request.session, &request.snapshot);
    let claimed = claimed_id(&request.head.headers);
    let is_known = session.container.as_ref().is_some_and(|container| {
        let claims = claimed.as_deref();
        snapshot.containers.available()
            && container.is_live(OffsetDateTime::now_utc())
            && claims.is_none_or(|claimed| claimed == container.id.as_str())
    });
    if is_known {
        return Ok(());
    }
    let method = request.head.method.as_str();
    let mut start = snapshot
        .chain()
        .for_mcp(session.client.clone(), own_subject(method));
    start.claimed_id = claimed;
    start.principal = session.principal.clone();
    // A dry run records nothing: the denial is recorded with the HTTP request.
    let mut flow = start.begin_dry();
    // The message is not read yet. A ping needs nothing but a known container.
    let frame = Frame::request(Direction::ToServer, McpTarget::Gateway, "ping", None);
    snapshot.chain().mcp_request(&mut flow, frame).await?;
    session.is_bound(&flow)
}
