//! A session with a child process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::StdioPorts;
use super::calls::{Answer, Calls, is_subscription};
use super::incoming::{Asked, Incoming};
use super::writer::{Lines, Writer};
use crate::mcp::event::Events;
use crate::mcp::message::{Id, Outcome, write_request, write_response};
use crate::mcp::mounts::process::{ChildPlace, ProcessManager};
use crate::mcp::mounts::way_out::OpenWayOut;
use crate::mcp::mounts::{Described, MountError, MountSession, Version};

/// How long a process may take to end after its standard input was closed; half of it before it
/// gets a signal. All ends within 5 seconds of its lease.
const STOPPING: Duration = Duration::from_secs(3);
/// How long what a process wrote last may take to arrive after it ended, or its end after its
/// output did.
const LAST_LINES: Duration = Duration::from_millis(500);

/// What the tasks of a session share.
pub(super) struct Shared {
    pub server: Arc<str>,
    pub calls: Calls,
    pub asked: Asked,
    pub writer: Writer,
    pub unsolicited: Events,
    pub ended: CancellationToken,
    /// Set once it was agreed on.
    pub version: OnceLock<Version>,
    next: AtomicU64,
    /// Why it ended.
    failure: Mutex<Option<MountError>>,
}

impl Shared {
    pub fn new(server: &Arc<str>, unsolicited: Events) -> (Arc<Self>, Lines) {
        let (writer, lines) = Writer::new();
        let shared = Self {
            server: Arc::clone(server),
            calls: Calls::default(),
            asked: Asked::default(),
            writer,
            unsolicited,
            ended: CancellationToken::new(),
            version: OnceLock::new(),
            next: AtomicU64::new(1),
            failure: Mutex::new(None),
        };
        (Arc::new(shared), lines)
    }

    /// Sends a request and waits for its answer, at most `limit`. Dropped, it cancels the request
    /// if the server `may_cancel` it.
    pub async fn ask(
        &self,
        method: &str,
        params: Option<&RawValue>,
        events: Events,
        limit: Option<Duration>,
        may_cancel: bool,
    ) -> Answer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, clock) = self.calls.add(id, method, params, events)?;
        let _cancelling = Cancelling {
            shared: self,
            id,
            may_cancel,
        };
        if self.ended.is_cancelled() {
            return Err(self.failure());
        }
        let text = write_request(Some(&Id::number(id)), method, params);
        let answering = async {
            if self.writer.send(text, Some(id)).await.is_none() {
                return Err(self.failure());
            }
            answer.await.unwrap_or_else(|_| Err(self.failure()))
        };
        let Some(limit) = limit else {
            return answering.await;
        };
        tokio::select! {
            answer = answering => answer,
            () = clock.expired(limit) => Err(MountError::TimedOut),
        }
    }

    /// Sends a notification.
    pub async fn tell(&self, method: &str, params: Option<&RawValue>) -> Result<(), MountError> {
        let text = write_request(None, method, params);
        let sent = self.writer.send(text, None).await;
        sent.ok_or_else(|| self.failure())
    }

    /// Answers a request of the server. Where it does not read, the answer is dropped.
    pub fn reply(&self, id: &Id, outcome: &Outcome) {
        let _ = self.writer.try_send(write_response(Some(id), outcome));
    }

    /// Remembers why the session ends; the first reason counts.
    pub fn fail(&self, error: MountError) {
        self.failure.lock().get_or_insert(error);
    }

    pub fn failure(&self) -> MountError {
        let failure = self.failure.lock().clone();
        failure.unwrap_or(MountError::Died { exit: None })
    }
}

/// Cancels a request at the server unless it was answered.
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
            let _ = self.shared.writer.try_send(text);
        }
    }
}

/// What belongs to a process, and goes when nothing is left of it.
pub(super) struct Belongings {
    pub ports: Arc<StdioPorts>,
    pub place: ChildPlace,
    pub way_out: Option<OpenWayOut>,
    pub most_values: usize,
}

/// Reads and writes until the process or the session has ended, and leaves nothing of either.
pub(super) async fn attend(
    shared: Arc<Shared>,
    process: Arc<dyn ProcessManager>,
    lines: Lines,
    belongings: Belongings,
) {
    let (children, runtime) = (&belongings.ports.children, process.runtime());
    children.started(&shared.server, runtime);
    let mut incoming = Incoming::new(&shared, belongings.most_values);
    let mut take = |line: &[u8]| incoming.take(line);
    let reading = async {
        if let Err(error) = process.read_loop(&mut take).await {
            shared.fail(error);
        }
    };
    let exiting = async {
        process.ended().await;
        // Its last lines may still be in the pipe.
        tokio::time::sleep(LAST_LINES).await;
    };
    tokio::select! {
        () = reading => {}
        () = exiting => {}
        () = shared.ended.cancelled() => {}
        () = async {
            lines.write_all(&*process, &shared).await;
            std::future::pending().await
        } => {}
    }
    let wanted = shared.ended.is_cancelled();
    if !wanted {
        // Its output has ended, and so has it, or nearly.
        let _ = timeout(LAST_LINES, process.ended()).await;
    }
    shared.fail(MountError::Died {
        exit: process.exit_code(),
    });
    let failure = shared.failure();
    shared.calls.end(&failure);
    shared.ended.cancel();
    process.stop(STOPPING).await;
    children.ended(&shared.server, runtime);
    let exit_code = process.exit_code();
    match wanted {
        true => tracing::debug!(server = %shared.server, exit_code, "an MCP server was ended"),
        false => tracing::warn!(
            server = %shared.server, exit_code, reason = %failure, "an MCP server ended"
        ),
    }
    drop(belongings.way_out);
    drop(belongings.place);
}

/// An open session.
pub(super) struct StdioSession {
    pub shared: Arc<Shared>,
    pub version: Version,
    pub described: Described,
    pub timeout: Duration,
}

impl MountSession for StdioSession {
    fn version(&self) -> Version {
        self.version
    }

    fn described(&self) -> &Described {
        &self.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            let method = permit.method();
            let limit = (!is_subscription(method)).then_some(self.timeout);
            let asking = self
                .shared
                .ask(method, permit.params(), events, limit, true);
            asking.await
        })
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move { self.shared.tell(permit.method(), permit.params()).await })
    }

    fn ended(&self) -> &CancellationToken {
        &self.shared.ended
    }
}

impl Drop for StdioSession {
    fn drop(&mut self) {
        self.shared.ended.cancel();
    }
}

/// A queue for events of a request that can have none.
pub(super) fn no_events() -> Events {
    mpsc::channel(1).0
}
