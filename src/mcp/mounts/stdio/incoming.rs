//! Handles the lines that a server writes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::mcp::event::{Event, Params};
use crate::mcp::message::{Id, Message, Outcome};
use crate::mcp::mounts::pace::Pace;
use crate::mcp::mounts::{MountError, error};
use crate::mcp::warnings::{OTHER_ID, Subject, deviates, warn};

/// A session ends when its process has written this number of lines that are not messages.
const MAX_INVALID: u32 = 1000;
/// The most lines other than responses that are read per second; further lines wait in the pipe.
const MAX_MESSAGES: u32 = 1000;

/// Reads the lines of one process.
pub(super) struct Incoming<'a> {
    shared: &'a Arc<Shared>,
    most_values: usize,
    /// Lines so far that were not messages.
    invalid: u32,
    pace: Pace,
}

impl<'a> Incoming<'a> {
    pub fn new(shared: &'a Arc<Shared>, most_values: usize) -> Self {
        Self {
            shared,
            most_values,
            invalid: 0,
            pace: Pace::new(MAX_MESSAGES),
        }
    }

    /// Handles a line; see [`ProcessManager::read_loop`](crate::mcp::ProcessManager::read_loop).
    pub fn take(&mut self, line: &[u8]) -> ControlFlow<(), Duration> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return ControlFlow::Continue(Duration::ZERO);
        }
        match Message::parse(line, self.most_values) {
            Ok(Message::Response { id, outcome }) => {
                self.answer(id, outcome);
                ControlFlow::Continue(Duration::ZERO)
            }
            Ok(Message::Notification { method, params }) => {
                self.notification(method, params);
                ControlFlow::Continue(self.pace())
            }
            Ok(Message::Request { id, method, params }) => {
                self.request(id, method, params);
                ControlFlow::Continue(self.pace())
            }
            Err(error) => self.skip_invalid(line, &error.to_string()),
        }
    }

    fn answer(&self, id: Option<Id>, outcome: Outcome) {
        let server = &self.shared.server;
        let number = id.as_ref().and_then(Id::as_number);
        let answered = number.is_some_and(|id| self.shared.calls.answer(id, Ok(outcome)));
        if answered && number.map(Id::number) != id {
            deviates(server, OTHER_ID);
        }
        if !answered {
            tracing::debug!(%server, "an answer to an unknown id was dropped");
        }
    }

    fn notification(&self, method: Arc<str>, params: Option<Box<RawValue>>) {
        let shared = self.shared;
        let events = match &*method {
            "notifications/cancelled" => return shared.requests.cancel(params.as_deref()),
            // The message may belong to a call of another container.
            "notifications/message" if shared.is_shared => None,
            "notifications/message" => shared.calls.logging(),
            _ => shared.calls.named(params.as_deref()),
        };
        let events = events.as_ref().unwrap_or(&shared.unsolicited);
        let event = Event::Notification {
            method: Arc::clone(&method),
            params: params.map(Params::from),
        };
        if events.try_send(event).is_err() {
            tracing::debug!(%method, "a notification of an MCP server was dropped");
        }
    }

    fn request(&self, id: Id, method: Arc<str>, params: Option<Box<RawValue>>) {
        let shared = self.shared;
        if &*method == "ping" {
            let result = RawValue::from_string("{}".to_owned());
            return shared.reply(&id, &result.map_err(|_| error::internal()));
        }
        if !shared.may_request.load(Ordering::Relaxed) {
            return shared.reply(&id, &Err(error::method_not_found()));
        }
        let Some(cancelled) = shared.requests.begin(&id) else {
            return shared.reply(&id, &Err(error::busy()));
        };
        let (reply, answer) = oneshot::channel();
        let event = Event::Request {
            method,
            params: params.map(Params::from),
            reply,
        };
        // In a shared session, the request may belong to a call of another container.
        let events = shared.calls.for_request().filter(|_| !shared.is_shared);
        let events = events.unwrap_or_else(|| shared.unsolicited.clone());
        if events.try_send(event).is_err() {
            shared.requests.end(&id);
            return shared.reply(&id, &Err(error::busy()));
        }
        tokio::spawn(wait_for_client(Arc::clone(shared), id, answer, cancelled));
    }

    /// Skips a line that is not a message; the [`MAX_INVALID`]th one ends the session. If the line
    /// has the id of a request, that request fails.
    fn skip_invalid(&mut self, line: &[u8], why: &str) -> ControlFlow<(), Duration> {
        #[derive(Deserialize)]
        struct Answers {
            id: u64,
        }
        let shared = self.shared;
        // Builds no tree: the line may have more values than the limit allows.
        if let Ok(Answers { id }) = serde_json::from_slice(line) {
            let error = MountError::Protocol(format!("the server's answer cannot be read: {why}"));
            shared.calls.answer(id, Err(error));
        }
        self.invalid += 1;
        if self.invalid == 1 {
            warn(&shared.server, Subject::Session, |left_out| {
                tracing::warn!(
                    server = %shared.server, left_out, why,
                    "an MCP server wrote a line that is not a message"
                );
            });
        }
        if self.invalid >= MAX_INVALID {
            let why = format!("the server wrote {MAX_INVALID} lines that are not messages");
            shared.fail(MountError::Protocol(why));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(self.pace())
    }

    /// How long to wait before the next line.
    fn pace(&mut self) -> Duration {
        let pause = self.pace.pause();
        self.pace.count();
        pause.unwrap_or_default()
    }
}

/// Waits for the client's answer and sends it to the server. Sends nothing if the queue to the
/// server is full, the server cancels the request or the session ends.
async fn wait_for_client(
    shared: Arc<Shared>,
    id: Id,
    answer: oneshot::Receiver<Outcome>,
    cancelled: CancellationToken,
) {
    let answer = tokio::select! {
        answer = answer => Some(answer.unwrap_or_else(|_dropped| Err(error::nobody_answers()))),
        () = cancelled.cancelled() => None,
        () = shared.ended.cancelled() => None,
    };
    shared.requests.end(&id);
    if let Some(answer) = answer {
        shared.reply(&id, &answer);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;
    use testkit::each_row_async;

    use super::*;
    use crate::mcp::mounts::{Events, Opening, Version};

    #[tokio::test]
    async fn an_answer_may_have_the_id_in_another_form() {
        each_row_async(
            [
                ("7", true),
                ("\"7\"", true),
                ("7.0", true),
                ("\"x\"", false),
                ("8", false),
                ("null", false),
            ],
            async |(id, is_answer)| {
                let opening = Opening {
                    container: None,
                    version: Version::V2025_11_25,
                    capabilities: to_raw_value("").unwrap().into(),
                    unsolicited: Events::none(),
                };
                let (shared, _lines) = Shared::new(&"t".into(), &opening);
                let mut answer = shared.calls.add(7, "ping", None, Events::none()).unwrap();
                let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}");
                assert!(
                    Incoming::new(&shared, 100)
                        .take(line.as_bytes())
                        .is_continue()
                );
                assert_eq!(answer.try_recv().is_ok(), is_answer, "{id}");
            },
        )
        .await;
    }

    #[tokio::test]
    async fn answers_to_a_server_that_does_not_read_are_dropped_once_its_queue_is_full() {
        // The first flood exceeds the bytes of the queue, the second its number of lines.
        each_row_async([(20, 1 << 20), (600, 8)], async |(number, length)| {
            let (unsolicited, mut requests) = Events::uncharged(1);
            let opening = Opening {
                container: None,
                version: Version::V2025_11_25,
                capabilities: to_raw_value("").unwrap().into(),
                unsolicited,
            };
            let (shared, _unread) = Shared::new(&"t".into(), &opening);
            shared.may_request.store(true, Ordering::Relaxed);
            let mut incoming = Incoming::new(&shared, 100);
            let answer = to_raw_value(&"x".repeat(length)).unwrap();
            for id in 0..number {
                let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"roots/list\"}}");
                assert!(incoming.take(line.as_bytes()).is_continue());
                let Some(Event::Request { reply, .. }) = requests.recv().await else {
                    panic!("request {id} did not reach the client");
                };
                reply.send(Ok(answer.clone())).unwrap();
                tokio::task::yield_now().await;
            }
            // A task that held an answer would hold the session's state.
            assert_eq!(Arc::strong_count(&shared), 1, "{number} answers");
        })
        .await;
    }
}
