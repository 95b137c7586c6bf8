//! Relays a server's progress, log messages and requests to the client during a call.

use std::sync::Arc;

use addons::contract::{
    BoxFuture, Chain, Definition, Direction, Frame, LiveFlow, McpTarget, RpcError,
};
use addons::json::Members;
use serde_json::value::RawValue;
use tokio::sync::{mpsc::error::TrySendError, oneshot};

use super::super::error::SERVER_ERROR;
use super::client_progress::{ProgressGuard, ProgressReceiver};
use super::judged_call::{JudgedCall, OpenCall};
use super::lease::Lease;
use super::params::{PROGRESS_TOKEN, Progress, TASK, edit};
use super::{
    Caller, Core, Era, Event, Events, LogLevel, MessageReservation, MountSession, Outcome, Params,
    method_not_found, protocol_error, record_end, rpc_error,
};

/// The most requests of servers that may wait for the client's answers in one call. The same limit
/// applies to requests outside calls. A further request is refused.
const MAX_OPEN_INPUT_REQUESTS: usize = 16;

/// Relays from one server to one client.
pub(super) struct Relay<'a> {
    pub core: &'a Arc<Core>,
    pub chain: &'a Arc<Chain>,
    pub caller: &'a Arc<Caller>,
    pub server: &'a Arc<str>,
    /// The client's queue.
    pub client: &'a Events,
    /// The definition of the called tool.
    pub definition: Option<&'a Arc<Definition>>,
    /// The progress tokens of the call.
    pub progress: Option<&'a Progress>,
    /// The session to which the client's progress on requests of the server is sent. `None` for a
    /// server of 2026-07-28, which takes no progress.
    pub session: Option<&'a Arc<dyn MountSession>>,
}

/// Waits for the client's answer to an input request, and sends the answer to the server.
pub(super) type OpenInputRequest = BoxFuture<'static, ()>;

impl Relay<'_> {
    /// Has the chain judge a message, and queues it for the client. For a queued request, returns
    /// the future that sends the client's answer to the server. Refuses any other request. Drops a
    /// notification that the chain denies or the client does not take. `open` is the number of
    /// requests that already wait for the client.
    pub async fn pass_on(&self, event: Event, open: usize) -> Option<OpenInputRequest> {
        match event {
            Event::Notification { method, params } => {
                self.notification(method, params).await;
                None
            }
            Event::Request {
                method,
                params,
                reply,
            } => {
                let error = if open >= MAX_OPEN_INPUT_REQUESTS {
                    let sentence = "Too many requests to the client are under way";
                    protocol_error(SERVER_ERROR, sentence)
                } else if can_answer(self.caller, &method) {
                    return self.request(method, params, reply).await;
                } else {
                    method_not_found(&method)
                };
                // The server may have given up.
                let _ = reply.send(Err(error));
                None
            }
        }
    }

    async fn notification(&self, method: Arc<str>, params: Option<Params>) {
        let params = match &*method {
            "notifications/progress" => match self.progress(params.as_deref()) {
                Some(params) => Some(params),
                None => return,
            },
            "notifications/message" if self.takes_log(params.as_deref()) => {
                params.map(Params::into_text)
            }
            "notifications/resources/updated" | "notifications/elicitation/complete"
                if self.caller.version.era() == Era::Legacy =>
            {
                params.map(Params::into_text)
            }
            _ => return,
        };
        let mut live = self.flow(&method);
        let (direction, target) = (Direction::ToClient, self.judged());
        let mut frame = Frame::notification(direction, target, Arc::clone(&method), params);
        frame.definition = self.definition.cloned();
        let judged = self.chain.mcp_request(&mut live.flow, frame).await;
        record_end(&mut live, &judged);
        let Ok(permit) = judged else {
            return;
        };
        let params = permit.params().map(|text| text.to_owned().into());
        let event = Event::Notification { method, params };
        if let Err(TrySendError::Full(_)) = self.client.try_send(event) {
            tracing::debug!(
                server = %self.server,
                "dropped a message to an MCP client: the client's event queue is full, or memory \
                 is exhausted"
            );
        }
    }

    /// The params of a progress notification with the client's token; `None` if the notification
    /// does not belong to this call.
    fn progress(&self, params: Option<&RawValue>) -> Option<Box<RawValue>> {
        let progress = self.progress?;
        let members = Members::read(params?).ok()?;
        if members.get(PROGRESS_TOKEN)?.parse() != Ok(progress.replacement) {
            return None;
        }
        let text = edit(&members, &[(PROGRESS_TOKEN, Some(&progress.original))]);
        RawValue::from_string(text).ok()
    }

    fn takes_log(&self, params: Option<&RawValue>) -> bool {
        let level = severity(params);
        match self.core.log_level(self.caller) {
            Some(wanted) => level.is_none_or(|level| level >= wanted),
            None => self.caller.version.era() == Era::Legacy,
        }
    }

    async fn request(
        &self,
        method: Arc<str>,
        params: Option<Params>,
        reply: oneshot::Sender<Outcome>,
    ) -> Option<OpenInputRequest> {
        let params = params.map(|params| without_task(params.into_text()));
        let registered = params
            .as_deref()
            .and_then(|params| self.register_progress(params));
        let (params, progress_guard) = match registered {
            Some((params, guard)) => (Some(params), Some(guard)),
            None => (params, None),
        };
        let (direction, target) = (Direction::ToClient, self.judged());
        let mut frame = Frame::request(direction, target, Arc::clone(&method), params);
        frame.definition = self.definition.cloned();
        let JudgedCall { permit, open } = match JudgedCall::admit(self.flow(&method), frame).await {
            Ok(judged) => judged,
            Err(denial) => {
                // The server may have given up.
                let _ = reply.send(Err(rpc_error(&denial)));
                return None;
            }
        };
        let (sender, answer) = oneshot::channel();
        let event = Event::Request {
            method,
            params: permit.params().map(|text| text.to_owned().into()),
            reply: sender,
        };
        if self.client.try_send(event).is_err() {
            let _ = reply.send(Err(unanswered()));
            return None;
        }
        let requester = Requester {
            core: Arc::clone(self.core),
            // A copy, since the request must not keep a disconnected client's session alive.
            caller: Arc::new(self.caller.without_session()),
            server: Arc::clone(self.server),
            events: self.client.clone(),
            is_in_call: self.definition.is_some(),
        };
        Some(Box::pin(async move {
            answer_server(open, requester, answer, reply).await;
            drop(progress_guard);
        }))
    }

    /// Lets a legacy client report progress on a request. Modern clients send no notifications.
    fn register_progress(&self, params: &RawValue) -> Option<(Box<RawValue>, ProgressGuard)> {
        let session = self
            .session
            .filter(|_| self.caller.version.era() == Era::Legacy)?;
        let receiver = ProgressReceiver {
            client: Arc::clone(self.caller),
            server: Arc::clone(self.server),
            session: Arc::clone(session),
        };
        let lease = Lease::of(&self.caller.container);
        receiver.begin(params, &lease.progress_receivers)
    }

    /// The sender, as the chain judges it: the server, also during the call of a tool.
    fn judged(&self) -> McpTarget {
        McpTarget::Server(Arc::clone(self.server))
    }

    fn flow(&self, method: &Arc<str>) -> LiveFlow {
        self.core
            .flow(self.chain, self.caller, method, Some(self.server), None)
    }
}

/// The server that sent an input request, and the client that the request was relayed to.
struct Requester {
    core: Arc<Core>,
    caller: Arc<Caller>,
    server: Arc<str>,
    /// Charges the answer.
    events: Events,
    /// Whether the call of a tool caused the request.
    is_in_call: bool,
}

/// Waits for the client's answer, judges it, and sends it to the server, unless the server gives up
/// first. The answer is charged meanwhile: its HTTP request has ended. If memory is exhausted, the
/// server gets an error.
async fn answer_server(
    mut open: OpenCall,
    requester: Requester,
    answer: oneshot::Receiver<Outcome>,
    mut reply: oneshot::Sender<Outcome>,
) {
    let answer = tokio::select! {
        answer = answer => answer.unwrap_or_else(|_gone| Err(unanswered())),
        // Returning drops `answer`, which cancels the request at the client's side.
        () = reply.closed() => return,
    };
    let held = requester.events.hold(answer);
    let (answer, _memory) =
        held.unwrap_or_else(|denial| (Err(rpc_error(&denial)), MessageReservation::default()));
    if !requester.is_in_call {
        let (core, caller) = (&requester.core, &requester.caller);
        open.tools = core.server_tools(caller, &requester.server).await;
    }
    let judged = open.conclude(Ok(answer)).await;
    // The server may have given up meanwhile.
    let _ = reply.send(judged.unwrap_or_else(|denial| Err(rpc_error(&denial))));
}

/// Whether a client declared the capability for requests of this method.
pub(super) fn can_answer(caller: &Caller, method: &str) -> bool {
    let capability = match method {
        "sampling/createMessage" => "sampling",
        "elicitation/create" => "elicitation",
        "roots/list" => "roots",
        _ => return false,
    };
    let capabilities = Members::read(&caller.capabilities);
    capabilities.is_ok_and(|capabilities| capabilities.get(capability).is_some())
}

/// The severity of a log message; `None` if the severity is missing or unknown.
pub(super) fn severity(params: Option<&RawValue>) -> Option<LogLevel> {
    let members = Members::read(params?).ok()?;
    LogLevel::parse(&members.text("level")?)
}

/// Removes the member that asks for a task from the params of a server's request.
fn without_task(params: Box<RawValue>) -> Box<RawValue> {
    let changed = match Members::read(&params) {
        Ok(members) if members.get(TASK).is_some() => edit(&members, &[(TASK, None)]),
        _ => return params,
    };
    RawValue::from_string(changed).unwrap_or(params)
}

/// The error for a request of a server that no client answered.
pub(super) fn unanswered() -> RpcError {
    protocol_error(SERVER_ERROR, "The client did not answer")
}
