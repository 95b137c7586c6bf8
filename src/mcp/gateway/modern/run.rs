//! A call of a modern client: its answer, as JSON or as a stream. Closing it cancels the call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::time::timeout;

use super::super::super::caller::Caller;
use super::super::super::error::{method_not_found, rpc_error};
use super::super::super::event::Event;
use super::super::super::message::{Id, Outcome, write_request, write_response};
use super::super::answer::Answered;
use super::super::call::{Call, Step};
use super::super::capabilities::can_answer;
use super::super::limits::{Count, GatewayMetrics};
use super::super::media::prefers_events;
use super::super::memory::Memory;
use super::super::sse;
use super::super::visit::Visit;
use super::request::{Request, whole};
use super::suspended::{Entry, Question, Suspended, suspend};

/// How long a request may go on before its client gets a stream in the place of a JSON answer, so
/// that nobody between us takes the connection for dead.
const STREAM_AFTER: Duration = Duration::from_secs(5);
/// How often a quiet stream sends a comment.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Requests whose results may ask for input.
const MAY_ASK: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

/// A call under way, and what is to be written first.
pub struct Running {
    call: Option<Call>,
    ready: VecDeque<Progress>,
    caller: Arc<Caller>,
    id: Id,
    method: Arc<str>,
    body: Bytes,
    waiting: Arc<Suspended>,
    memory: Memory,
    metrics: GatewayMetrics,
    suspended_in_all: Count,
}

enum Progress {
    Notification(String),
    Done(Outcome),
}

impl Running {
    /// Begins a call.
    pub fn begin(visit: &Visit<'_>, request: &Request<'_>, caller: Arc<Caller>) -> Self {
        let backend = &*visit.gateway.backend;
        let (method, params) = (Arc::clone(&request.method), request.params.clone());
        let call = Call::begin(backend, Arc::clone(&caller), method, params);
        Self::resume(visit, request, caller, call)
    }

    /// Goes on with one that waited for its client.
    pub fn resume(
        visit: &Visit<'_>,
        request: &Request<'_>,
        caller: Arc<Caller>,
        call: Call,
    ) -> Self {
        Self {
            call: Some(call),
            ready: VecDeque::new(),
            caller,
            id: request.id.clone(),
            method: Arc::clone(&request.method),
            body: request.body.clone(),
            waiting: Arc::clone(&visit.lease.suspended),
            memory: visit.memory.clone(),
            metrics: visit.gateway.metrics.clone(),
            suspended_in_all: visit.gateway.suspended.clone(),
        }
    }

    /// What happens next. Cancel-safe.
    async fn next(&mut self) -> Progress {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return ready;
            }
            let Some(call) = &mut self.call else {
                return std::future::pending().await;
            };
            match call.next().await {
                Step::Done(outcome) => return Progress::Done(outcome),
                Step::Event(event) => self.take(event),
            }
        }
    }

    /// Takes an event, and with a question all that waits behind it.
    fn take(&mut self, event: Event) {
        let mut questions = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            match event {
                Event::Notification { method, params } => {
                    let text = write_request(None, &method, params.as_deref());
                    self.ready.push_back(Progress::Notification(text));
                }
                Event::Request {
                    method,
                    params,
                    reply,
                } => {
                    let may_ask = MAY_ASK.contains(&&*self.method);
                    if may_ask && can_answer(&self.caller.capabilities, &method) {
                        questions.push(Question {
                            method,
                            params,
                            reply,
                        });
                    } else {
                        // It fails where the server has gone.
                        let _ = reply.send(Err(method_not_found(&method)));
                    }
                }
            }
            let waits = self.call.as_mut().filter(|_| !questions.is_empty());
            next = waits.and_then(Call::ready_event);
        }
        if !questions.is_empty()
            && let Some(call) = self.call.take()
        {
            let outcome = self.suspend(call, questions);
            self.ready.push_back(Progress::Done(outcome));
        }
    }

    /// Leaves the call to the client's next request.
    fn suspend(&self, call: Call, questions: Vec<Question>) -> Outcome {
        let entry = Entry::new(call, &self.method, &self.body, questions);
        let suspended = suspend(&self.waiting, &self.suspended_in_all, &self.metrics, entry);
        suspended.map_err(|denial| rpc_error(&denial))
    }

    /// The next piece of the stream, and whether it is the last.
    async fn piece(&mut self) -> (Bytes, bool) {
        let (text, is_last) = match timeout(KEEP_ALIVE, self.next()).await {
            Err(_elapsed) => return (sse::KEEP_ALIVE, false),
            Ok(Progress::Notification(text)) => (text, false),
            Ok(Progress::Done(outcome)) => (write_response(Some(&self.id), &outcome), true),
        };
        let piece = match self.memory.reserve(text.len()) {
            Ok(charge) => charge.hold(sse::message(None, &text)),
            Err(denial) => {
                let error = write_response(Some(&self.id), &Err(rpc_error(&denial)));
                return (sse::message(None, &error), true);
            }
        };
        (piece, is_last)
    }
}

/// Waits for the outcome; where a server has something to say before, or takes long, the client
/// gets a stream.
pub async fn run(visit: &Visit<'_>, mut running: Running) -> Answered {
    match timeout(STREAM_AFTER, running.next()).await {
        // An error may have a status of its own, which a stream cannot have.
        Ok(Progress::Done(outcome)) if outcome.is_err() || !prefers_events(visit.headers()) => {
            return whole(visit, &running.id, &outcome);
        }
        Ok(first) => running.ready.push_front(first),
        Err(_elapsed) => {}
    }
    let pieces = unfold(Some(running), |running| async {
        let mut running = running?;
        let (piece, is_last) = running.piece().await;
        Some((piece, (!is_last).then_some(running)))
    });
    Answered::Events(Box::pin(pieces))
}
