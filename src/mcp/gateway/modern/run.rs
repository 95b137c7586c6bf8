//! Answers a call of a modern client with JSON or a stream. Closing the stream cancels the call.

use std::collections::VecDeque;
use std::sync::Arc;

use addons::json::Members;
use bytes::Bytes;
use futures_util::stream::unfold;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::super::super::caller::Caller;
use super::super::super::core::FoundTool;
use super::super::super::error::{method_not_found, rpc_error};
use super::super::super::event::{Event, Params};
use super::super::super::message::{Id, Outcome, write_request, write_response};
use super::super::answer::{HttpResponse, STREAM_AFTER};
use super::super::call::{Call, Step};
use super::super::limits::{Count, GatewayMetrics};
use super::super::media::{accepts_events, prefers_events};
use super::super::memory::Memory;
use super::super::sse;
use super::super::visit::Visit;
use super::params::ModernParams;
use super::request::{MAY_ASK, Request, json_response};
use super::suspended::{Entry, InputRequest, Suspended, suspend};

/// A call under way, with messages that wait to be written.
pub struct Running {
    call: Option<Call>,
    ready: VecDeque<Output>,
    id: Id,
    method: Arc<str>,
    /// The progress token of this request, as JSON. In the server's notifications, it replaces the
    /// token of the call's first request.
    progress_token: Option<Box<RawValue>>,
    /// The digest of this request, for a retry.
    binding: Arc<str>,
    waiting: Arc<Suspended>,
    memory: Memory,
    metrics: GatewayMetrics,
    suspended_in_all: Count,
}

enum Output {
    /// The text of a notification. Its params are kept with it, so that they stay charged until the
    /// text is written.
    Notification(String, Option<Params>),
    Done(Outcome),
}

impl Running {
    pub fn begin(
        visit: &Visit<'_>,
        request: &Request,
        read: &ModernParams<'_>,
        (caller, tool): (Arc<Caller>, Option<FoundTool>),
        binding: Arc<str>,
    ) -> Self {
        let (method, params) = (Arc::clone(&request.method), request.params.clone());
        let call = visit.call(caller, method, params, tool);
        Self::resume(visit, request, read, call, binding)
    }

    pub fn resume(
        visit: &Visit<'_>,
        request: &Request,
        read: &ModernParams<'_>,
        mut call: Call,
        binding: Arc<str>,
    ) -> Self {
        let progress_token = read.progress_token().map(RawValue::to_owned);
        call.progress
            .resume(progress_token.as_deref().map(RawValue::get));
        Self {
            call: Some(call),
            ready: VecDeque::new(),
            progress_token,
            id: request.id.clone(),
            method: Arc::clone(&request.method),
            binding,
            waiting: Arc::clone(&visit.lease.suspended),
            memory: visit.memory.clone(),
            metrics: visit.gateway.metrics.clone(),
            suspended_in_all: visit.gateway.suspended.clone(),
        }
    }

    /// The next message. Cancel-safe.
    async fn next(&mut self) -> Output {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return ready;
            }
            let Some(call) = &mut self.call else {
                return std::future::pending().await;
            };
            match call.next().await {
                Step::Done(outcome) => return Output::Done(outcome),
                Step::Event(event) => self.handle(event),
            }
        }
    }

    /// Handles an event. If the event is an input request, also handles all queued events, so that
    /// the client gets all input requests together.
    fn handle(&mut self, event: Event) {
        let mut input_requests = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            match event {
                Event::Notification { method, params } => {
                    let text = self.notification(&method, params.as_deref());
                    let notification = text.map(|text| Output::Notification(text, params));
                    self.ready.extend(notification);
                }
                Event::Request {
                    method,
                    params,
                    reply,
                } => {
                    if MAY_ASK.contains(&&*self.method) {
                        input_requests.push(InputRequest {
                            method,
                            params,
                            reply,
                        });
                    } else {
                        // Fails if the server has stopped waiting.
                        let _ = reply.send(Err(method_not_found(&method)));
                    }
                }
            }
            let waits = self.call.as_mut().filter(|_| !input_requests.is_empty());
            next = waits.and_then(Call::ready_event);
        }
        if !input_requests.is_empty()
            && let Some(call) = self.call.take()
        {
            let outcome = self.suspend(call, input_requests);
            self.ready.push_back(Output::Done(outcome));
        }
    }

    /// The text of a notification, with the progress token of this request; `None` for a progress
    /// notification if this request has no token.
    fn notification(&self, method: &str, params: Option<&RawValue>) -> Option<String> {
        if method != "notifications/progress" {
            return Some(write_request(None, method, params));
        }
        let members = Members::read(params?).ok()?;
        let params = members.with("progressToken", self.progress_token.as_ref()?.get());
        let params = RawValue::from_string(params).ok()?;
        Some(write_request(None, method, Some(&params)))
    }

    /// Suspends the call until the client's retry.
    fn suspend(&self, call: Call, input_requests: Vec<InputRequest>) -> Outcome {
        let entry = Entry::new(call, &self.binding, input_requests);
        let suspended = suspend(&self.waiting, &self.suspended_in_all, &self.metrics, entry);
        suspended.map_err(|denial| rpc_error(&denial))
    }

    /// The next piece of the stream, and whether it is the last.
    async fn piece(&mut self) -> (Bytes, bool) {
        let (text, is_last) = match timeout(sse::KEEP_ALIVE_INTERVAL, self.next()).await {
            Err(_elapsed) => return (sse::KEEP_ALIVE, false),
            Ok(Output::Notification(text, _charged)) => (text, false),
            Ok(Output::Done(outcome)) => (write_response(Some(&self.id), &outcome), true),
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

/// Waits for the outcome and answers with JSON. Answers with a stream instead if a notification
/// comes first, the call takes longer than [`STREAM_AFTER`], or the outcome is a result and
/// `Accept` lists event streams first. A client that accepts no event streams gets no notifications.
pub async fn run(visit: &Visit<'_>, mut running: Running) -> HttpResponse {
    if !accepts_events(visit.headers()) {
        loop {
            if let Output::Done(outcome) = running.next().await {
                return json_response(visit, &running.id, &outcome);
            }
        }
    }
    match timeout(STREAM_AFTER, running.next()).await {
        // An error may have another HTTP status than the 200 of a stream.
        Ok(Output::Done(outcome)) if outcome.is_err() || !prefers_events(visit.headers()) => {
            return json_response(visit, &running.id, &outcome);
        }
        Ok(first) => running.ready.push_front(first),
        Err(_elapsed) => {}
    }
    let pieces = unfold(Some(running), |running| async {
        let mut running = running?;
        let (piece, is_last) = running.piece().await;
        Some((piece, (!is_last).then_some(running)))
    });
    HttpResponse::Events(Box::pin(pieces))
}

#[cfg(test)]
mod tests {
    use super::super::super::super::event::Events;
    use super::super::super::super::message_memory::Account;
    use super::super::super::progress::CallProgress;
    use super::*;

    #[tokio::test]
    async fn messages_that_wait_for_the_client_stay_charged() {
        const LONG: usize = 100_000;
        let account = Account::of(6 * LONG);
        let (events, receiver) = Events::charged(Arc::clone(&account) as _);
        let params = || {
            let text = serde_json::value::to_raw_value(&"x".repeat(LONG)).unwrap();
            Some(Params::from(text))
        };
        let (reply, _answer) = tokio::sync::oneshot::channel();
        let input_request = Event::Request {
            method: "elicitation/create".into(),
            params: params(),
            reply,
        };
        let log = Event::Notification {
            method: "notifications/message".into(),
            params: params(),
        };
        events.try_send(input_request).unwrap();
        events.try_send(log).unwrap();
        let mut running = Running {
            call: Some(Call::new(
                std::future::pending(),
                events,
                receiver,
                CallProgress::new(None),
            )),
            ready: VecDeque::new(),
            id: Id::number(1),
            method: "tools/call".into(),
            progress_token: None,
            binding: "".into(),
            waiting: Arc::default(),
            memory: Memory::uncounted(),
            metrics: GatewayMetrics::new(&prometheus::Registry::new()).unwrap(),
            suspended_in_all: Count::default(),
        };
        let waiting = Arc::clone(&running.waiting);
        let log = running.next().await;
        assert!(matches!(log, Output::Notification(..)));
        assert!(account.reserved() > 2 * LONG, "{}", account.reserved());
        drop(log);
        let reserved = account.reserved();
        assert!((LONG..2 * LONG).contains(&reserved), "{reserved}");
        assert!(matches!(running.next().await, Output::Done(Ok(_))));
        drop(running);
        assert_eq!(
            account.reserved(),
            reserved,
            "the input request is suspended"
        );
        waiting.end();
        assert_eq!(account.reserved(), 0);
    }
}
