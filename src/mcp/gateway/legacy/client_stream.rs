//! Writes the messages of calls, and messages outside calls, to the streams that clients read.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::super::super::core::Attachment;
use super::super::super::error::{SERVER_ERROR, protocol_error, rpc_error};
use super::super::super::event::Event;
use super::super::super::message::{Id, Outcome, write_request, write_response};
use super::super::call::{Call, Step};
use super::super::limits::GatewayMetrics;
use super::super::memory::Memory;
use super::super::visit::Visit;
use super::event_stream::{EventStream, MAX_BYTES};
use super::session::{CallGuard, LegacySession};

/// The stream that a client reads, and the state for writing to it.
#[derive(Clone)]
pub struct ClientStream {
    session: Arc<LegacySession>,
    stream: Arc<EventStream>,
    memory: Memory,
    metrics: GatewayMetrics,
    /// Cancelled when the process must stop at once.
    killed: CancellationToken,
}

/// Guard of a request to the client. Dropping the guard withdraws the request, unless the client
/// has answered.
struct Registered {
    session: Arc<LegacySession>,
    number: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.session.withdraw(self.number);
    }
}

impl ClientStream {
    /// Writes messages of `session` to `stream`.
    pub fn new(visit: &Visit<'_>, session: Arc<LegacySession>, stream: Arc<EventStream>) -> Self {
        Self {
            session,
            stream,
            memory: visit.memory.clone(),
            metrics: visit.gateway.metrics.clone(),
            killed: visit.session().service.killed.clone(),
        }
    }

    /// Writes the messages of a call to the call's own stream. Ends when the response is written,
    /// when the client cancels the call, when the session or the process ends, or when the client
    /// stays disconnected for [`RESUME_WITHIN`](super::event_stream::RESUME_WITHIN).
    pub async fn call(self, id: Id, mut call: Call, first: Option<Event>, guard: CallGuard) {
        let state = Arc::clone(&call.state);
        let leaving = async {
            self.stream.without_reader().await;
            state.left.cancel();
            std::future::pending().await
        };
        let relaying = self.relay(&id, &mut call, first);
        let writing = async {
            tokio::select! {
                () = leaving => {}
                () = relaying => {}
            }
        };
        self.write(&guard, writing).await;
    }

    /// As [`ClientStream::call`], for a call that has ended: writes only the response.
    pub async fn response(self, id: Id, outcome: Outcome, guard: CallGuard) {
        self.write(&guard, self.respond(&id, outcome)).await;
    }

    async fn write(&self, guard: &CallGuard, writing: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = guard.cancelled.cancelled() => {}
            () = self.killed.cancelled() => {}
            () = self.stream.abandoned() => {}
            () = writing => {}
        }
        self.stream.finish();
    }

    /// Writes the messages of a call to the only stream of its session (HTTP+SSE).
    pub async fn call_on_shared(self, id: Id, mut call: Call, guard: CallGuard) {
        tokio::select! {
            biased;
            () = guard.cancelled.cancelled() => {}
            () = self.killed.cancelled() => {}
            () = self.relay(&id, &mut call, None) => {}
        }
    }

    /// Relays messages outside requests until the session ends or its client stays disconnected for
    /// too long.
    pub async fn unsolicited(self, mut events: mpsc::Receiver<Event>, attachment: Attachment) {
        let relay = async {
            while let Some(event) = events.recv().await {
                self.deliver(event).await;
            }
        };
        tokio::select! {
            biased;
            () = self.session.ended.cancelled() => {}
            () = self.killed.cancelled() => {}
            () = self.stream.abandoned() => {}
            () = relay => {}
        }
        drop(attachment);
        self.stream.finish();
    }

    async fn relay(&self, id: &Id, call: &mut Call, first: Option<Event>) {
        if let Some(event) = first {
            self.deliver(event).await;
        }
        loop {
            match call.next().await {
                Step::Event(event) => self.deliver(event).await,
                Step::Done(outcome) => return self.respond(id, outcome).await,
            }
        }
    }

    async fn deliver(&self, event: Event) {
        match event {
            Event::Notification { method, params } => {
                let text = write_request(None, &method, params.as_deref());
                if self.stream.push(&text, &self.memory).await.is_err() {
                    tracing::debug!(%method, "dropped a notification: memory is exhausted");
                }
            }
            Event::Request {
                method,
                params,
                reply,
            } => self.ask(&method, params.as_deref(), reply).await,
        }
    }

    /// Sends a request to the client and relays the answer to the server. When the server stops
    /// waiting, cancels the request at the client. If too many requests wait for the client or
    /// memory is exhausted, drops `reply`, which answers the server with an error.
    async fn ask(
        &self,
        method: &str,
        params: Option<&RawValue>,
        mut reply: oneshot::Sender<Outcome>,
    ) {
        let Some((number, answer)) = self.session.register_input_request() else {
            self.metrics.hit("questions");
            return;
        };
        let registered = Registered {
            session: Arc::clone(&self.session),
            number,
        };
        let request = write_request(Some(&Id::number(number)), method, params);
        if self.stream.push(&request, &self.memory).await.is_err() {
            return;
        }
        let client = self.clone();
        tokio::spawn(async move {
            let _registered = registered;
            tokio::select! {
                answered = answer => {
                    if let Ok(outcome) = answered {
                        let _ = reply.send(outcome);
                    }
                }
                () = reply.closed() => client.withdraw(number).await,
                () = client.session.ended.cancelled() => {}
            }
        });
    }

    /// Cancels a request at the client, unless it was answered.
    async fn withdraw(&self, number: u64) {
        if !self.session.withdraw(number) {
            return;
        }
        let params = RawValue::from_string(format!("{{\"requestId\":{number}}}")).ok();
        let cancelled = write_request(None, "notifications/cancelled", params.as_deref());
        // If memory is exhausted, the client is not notified. An answer that it still sends is
        // dropped like any answer to a withdrawn request.
        let push = self.stream.push(&cancelled, &self.memory);
        self.session.ended.run_until_cancelled(push).await;
    }

    /// Writes the response. Writes an error instead if memory is exhausted, or if the client is
    /// disconnected and the response is too long to be kept.
    pub async fn respond(&self, id: &Id, outcome: Outcome) {
        let text = write_response(Some(id), &outcome);
        // Only the text is charged while it waits for the client.
        drop(outcome);
        let pushed = if text.len() > MAX_BYTES && !self.stream.has_reader() {
            self.metrics.hit("replay");
            let message = "the result was too long to be kept while the client was away";
            let lost = write_response(Some(id), &Err(protocol_error(SERVER_ERROR, message)));
            self.stream.push(&lost, &self.memory).await
        } else {
            self.stream.push(&text, &self.memory).await
        };
        if let Err(denial) = pushed {
            let error = write_response(Some(id), &Err(rpc_error(&denial)));
            // A short message needs no reservation.
            let _ = self.stream.push(&error, &self.memory).await;
        }
    }
}
