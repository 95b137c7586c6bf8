//! State that the tasks of a session share, and sending of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::calls::{Answer, Calls};
use super::server_requests::ServerRequests;
use super::writer::{Lines, Writer};
use crate::mcp::error::rpc_error;
use crate::mcp::event::Events;
use crate::mcp::message::{Id, Outcome, write_request, write_response};
use crate::mcp::mounts::{MessageReservation, MountError, Opening};
use crate::mcp::warnings::{Subject, warn};

/// State that the tasks of a session share.
pub(super) struct Shared {
    pub server: Arc<str>,
    pub calls: Calls,
    pub requests: ServerRequests,
    pub writer: Writer,
    pub unsolicited: Events,
    /// Whether all containers share the session.
    pub is_shared: bool,
    pub ended: CancellationToken,
    /// Whether the server may send requests. Set before the gateway sends `initialize`, and cleared
    /// if the server turns out to be modern.
    pub may_request: AtomicBool,
    next: AtomicU64,
    /// Whether an answer to the server was dropped. Only the first one is logged.
    dropped: AtomicBool,
    /// The reason why the session ended.
    failure: Mutex<Option<MountError>>,
}

impl Shared {
    pub fn new(server: &Arc<str>, opening: &Opening) -> (Arc<Self>, Lines) {
        let (writer, lines) = Writer::new();
        let shared = Self {
            server: Arc::clone(server),
            calls: Calls::default(),
            requests: ServerRequests::default(),
            writer,
            unsolicited: opening.unsolicited.clone(),
            is_shared: opening.container.is_none(),
            ended: CancellationToken::new(),
            may_request: AtomicBool::new(false),
            next: AtomicU64::new(1),
            dropped: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        (Arc::new(shared), lines)
    }

    /// Sends a request and waits for its answer. If `may_cancel` is set, dropping the future
    /// cancels the request at the server.
    pub async fn send_request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        events: Events,
        may_cancel: bool,
    ) -> Answer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = events.message();
        let answer = self.calls.add(id, method, params, events)?;
        let _cancelling = Cancelling {
            shared: self,
            id,
            may_cancel,
        };
        if self.ended.is_cancelled() {
            return Err(self.failure());
        }
        let text = write_request(Some(&Id::number(id)), method, params);
        if self.writer.send((text, message), Some(id)).await.is_none() {
            return Err(self.failure());
        }
        let held = answer.await.unwrap_or_else(|_| Err(self.failure()));
        held.map(|(outcome, _memory)| outcome)
    }

    /// Sends a notification.
    pub async fn send_notification(
        &self,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<(), MountError> {
        let text = write_request(None, method, params);
        let memory = self.unsolicited.reserve(text.len());
        let memory = memory.map_err(MountError::Denied)?;
        let sent = self.writer.send((text, memory), None).await;
        sent.ok_or_else(|| self.failure())
    }

    /// Answers a request of the server; drops the answer if the queue to the server is full. Never
    /// waits for room: a server that sends requests and does not read would otherwise make any
    /// number of answers wait. If memory is exhausted, the server gets an error.
    pub fn reply(&self, id: &Id, outcome: &Outcome) {
        let text = write_response(Some(id), outcome);
        let answer = match self.unsolicited.reserve(text.len()) {
            Ok(memory) => (text, memory),
            Err(denial) => {
                let refusal = write_response(Some(id), &Err(rpc_error(&denial)));
                (refusal, MessageReservation::default())
            }
        };
        let sent = self.writer.try_send(answer);
        let is_full = sent.is_none() && !self.writer.is_closed();
        if is_full && !self.dropped.swap(true, Ordering::Relaxed) {
            warn(&self.server, Subject::Session, |left_out| {
                tracing::warn!(
                    server = %self.server, left_out,
                    "an answer to an MCP server was dropped, since the server does not read its input"
                );
            });
        }
    }

    /// Records why the session ends; the first reason counts.
    pub fn fail(&self, error: MountError) {
        self.failure.lock().get_or_insert(error);
    }

    pub fn failure(&self) -> MountError {
        let failure = self.failure.lock().clone();
        failure.unwrap_or(MountError::Died { exit: None })
    }
}

/// Guard of a request. Dropping the guard removes the request, and cancels it at the server if it
/// is unanswered and `may_cancel` is set.
struct Cancelling<'a> {
    shared: &'a Shared,
    id: u64,
    may_cancel: bool,
}

impl Drop for Cancelling<'_> {
    fn drop(&mut self) {
        if self.shared.calls.remove(self.id) && self.may_cancel {
            let params = format!("{{\"requestId\":{},\"reason\":\"cancelled\"}}", self.id);
            let params = RawValue::from_string(params).ok();
            let text = write_request(None, "notifications/cancelled", params.as_deref());
            let charge = MessageReservation::default();
            let _ = self.shared.writer.try_send((text, charge));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::value::to_raw_value;
    use tokio::time::timeout;

    use super::*;
    use crate::mcp::Version;
    use crate::mcp::message_memory::{Account, MessageMemory};

    const LONG: usize = 100_000;

    #[tokio::test]
    async fn a_line_is_charged_until_it_is_written_even_if_its_request_was_cancelled() {
        let account = Account::of(8 * LONG);
        let (unsolicited, _events) = Events::charged(Arc::clone(&account) as _);
        let opening = Opening {
            container: None,
            version: Version::V2025_11_25,
            capabilities: to_raw_value("").unwrap().into(),
            unsolicited,
        };
        let (shared, lines) = Shared::new(&"t".into(), &opening);
        let long = to_raw_value(&"x".repeat(LONG)).unwrap();
        // The reservation of a client's message, which is charged once.
        let message = account.reserve().unwrap();
        message.grow(LONG).unwrap();
        let events = Events::none().of_message(Some(message));
        let call = shared.send_request("tools/call", Some(&long), events, true);
        assert!(timeout(Duration::from_millis(20), call).await.is_err());
        let once = account.reserved();
        assert!((LONG..2 * LONG).contains(&once), "{once}");
        shared.reply(&Id::number(1), &Ok(long.clone()));
        shared.send_notification("a", Some(&long)).await.unwrap();
        assert!(account.reserved() > 3 * LONG, "{}", account.reserved());
        drop(lines);
        assert_eq!(account.reserved(), 0);
    }

    #[tokio::test]
    async fn without_memory_a_server_gets_an_error_for_an_answer_and_a_notification_is_denied() {
        let account = Account::of(LONG / 2);
        let (unsolicited, _events) = Events::charged(account as _);
        let opening = Opening {
            container: None,
            version: Version::V2025_11_25,
            capabilities: to_raw_value("").unwrap().into(),
            unsolicited,
        };
        let (shared, mut lines) = Shared::new(&"t".into(), &opening);
        let long = to_raw_value(&"x".repeat(LONG)).unwrap();
        let told = shared.send_notification("a", Some(&long)).await;
        assert!(matches!(told, Err(MountError::Denied(_))));
        shared.reply(&Id::number(1), &Ok(long));
        let line = lines.next_text().await.unwrap();
        assert!(line.contains("\"error\"") && line.len() < 1000, "{line}");
    }
}
