//! A task: a call that waits for a person, or the outcome of that call, for a client that polls.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::RpcError;
use addons::json::ObjectText;
use addons::mcp::OpenQuestion;
use parking_lot::Mutex;
use serde_json::json;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::super::error::{SERVER_ERROR, is_verdict, protocol_error, raw};
use super::results::input_required;
use super::{MessageReservation, Outcome};

/// How often clients are asked to poll, in milliseconds of JSON.
const POLL_INTERVAL_MS: &str = "3000";
/// A client that has polled within this time counts as there: a few polls may be late or lost.
const ATTENDED_FOR: Duration = Duration::from_secs(30);
/// How long an outcome is kept at least, also after its first poll: its response may be lost.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// The most tasks of a lease that are kept: as many as calls may wait for people. Each task under way
/// holds a permit of these calls, so that one is over when there is another one.
pub(super) const MAX_TASKS: usize = 256;
/// What the model reads of a tool that asks the client for input.
const NO_INPUT: &str =
    "the tool asks for input, which the task of a call that a person approved cannot pass on";

/// The tasks of a lease, in the order of their creation.
#[derive(Default)]
pub(super) struct Tasks(Mutex<Vec<Arc<Task>>>);

/// A task, as the extension `io.modelcontextprotocol/tasks` of 2026-07-28 defines it.
pub(super) struct Task {
    id: Box<str>,
    created_at: OffsetDateTime,
    created: Instant,
    /// When the question ends, at the latest.
    pub ends: Instant,
    /// Notified at each poll.
    pub polled: Notify,
    /// Cancelled when the client cancels the task.
    pub cancelled: CancellationToken,
    state: Mutex<State>,
}

struct State {
    status: Status,
    message: Option<String>,
    updated_at: OffsetDateTime,
    polled: Instant,
    /// Until when the task is kept, once it is over.
    kept_until: Instant,
    /// Charges the outcome to the container's memory.
    _held: MessageReservation,
}

enum Status {
    Working,
    Over(Ended),
    /// The client has read the outcome: the result of `tasks/get`.
    Read(Box<RawValue>),
}

enum Ended {
    Completed(Box<RawValue>),
    Failed(RpcError),
    Cancelled,
}

impl Tasks {
    /// Adds a task. At the limit, drops the oldest one that is over.
    pub fn add(&self, task: &Arc<Task>) {
        let mut all = self.0.lock();
        let over = all.iter().position(|task| task.is_over());
        if let Some(oldest) = over.filter(|_| all.len() >= MAX_TASKS) {
            all.remove(oldest).drop_now();
        }
        all.push(Arc::clone(task));
    }

    /// The task with this id.
    pub fn find(&self, id: &str) -> Option<Arc<Task>> {
        let all = self.0.lock();
        all.iter().find(|task| *task.id == *id).cloned()
    }

    pub fn remove(&self, task: &Arc<Task>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, task));
    }
}

impl Task {
    /// Creates a task for a call that waits for a person.
    pub fn new(id: String, question: &OpenQuestion) -> Arc<Self> {
        let (created_at, created) = (OffsetDateTime::now_utc(), Instant::now());
        let ends = created + question.ttl();
        let message = format!("waits for a person (approval {})", question.approval());
        Arc::new(Self {
            id: id.into(),
            created_at,
            created,
            ends,
            polled: Notify::new(),
            cancelled: CancellationToken::new(),
            state: Mutex::new(State {
                status: Status::Working,
                message: Some(message),
                updated_at: created_at,
                polled: created,
                kept_until: ends,
                _held: MessageReservation::default(),
            }),
        })
    }

    /// The result of the call: `CreateTaskResult`.
    pub fn created(&self) -> Outcome {
        self.write("task", &self.state.lock(), None)
    }

    /// The result of `tasks/get`. The client counts as there from now on. A long outcome is written
    /// only at the first poll.
    pub fn poll(&self) -> Outcome {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.polled = now;
        self.polled.notify_one();
        if matches!(state.status, Status::Over(_)) {
            state.kept_until = state.kept_until.min(now + KEPT_FOR);
        }
        let written = match &state.status {
            Status::Working => return self.write("complete", &state, None),
            Status::Read(written) => return Ok(written.clone()),
            Status::Over(ended) => self.write("complete", &state, Some(ended))?,
        };
        state.status = Status::Read(written.clone());
        Ok(written)
    }

    /// Waits until the client has not polled for [`ATTENDED_FOR`].
    pub async fn unattended(&self) {
        loop {
            let until = self.state.lock().polled + ATTENDED_FOR;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Says that a person has approved the call.
    pub fn approved(&self) {
        self.state.lock().message = Some("approved by a person; the call is under way".to_owned());
    }

    /// Ends the task with the outcome of its call.
    pub fn finish(&self, outcome: Outcome, held: MessageReservation) {
        let ended = match outcome {
            Ok(result) if input_required(&result).is_some() => Ended::error(NO_INPUT),
            Ok(result) => Ended::Completed(result),
            Err(error) if is_verdict(&error) => Ended::error(&error.message),
            Err(error) => Ended::Failed(error),
        };
        self.end(ended, held);
    }

    /// Cancels the call, unless the task is over.
    pub fn cancel(&self) {
        self.end(Ended::Cancelled, MessageReservation::default());
        self.cancelled.cancel();
    }

    /// Waits until the outcome is kept no longer.
    pub async fn kept(&self) {
        loop {
            let until = self.state.lock().kept_until;
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.polled.notified() => {}
            }
        }
    }

    fn end(&self, ended: Ended, held: MessageReservation) {
        let mut state = self.state.lock();
        if state.is_over() {
            return;
        }
        let least = Instant::now() + KEPT_FOR;
        state.kept_until = match ended {
            Ended::Cancelled => least,
            _ => state.kept_until.max(least),
        };
        state.updated_at = OffsetDateTime::now_utc();
        state.message = match &ended {
            Ended::Failed(error) => Some(error.message.clone().into_owned()),
            _ => None,
        };
        state.status = Status::Over(ended);
        state._held = held;
    }

    fn drop_now(&self) {
        self.state.lock().kept_until = Instant::now();
        self.polled.notify_one();
    }

    fn is_over(&self) -> bool {
        self.state.lock().is_over()
    }

    fn write(&self, result_type: &str, state: &State, ended: Option<&Ended>) -> Outcome {
        let ttl = state.kept_until.saturating_duration_since(self.created);
        let mut task = ObjectText::default();
        task.text("resultType", result_type);
        task.text("taskId", &self.id);
        task.text("status", ended.map_or("working", Ended::as_str));
        if let Some(message) = &state.message {
            task.text("statusMessage", message);
        }
        task.text("createdAt", &timestamp(self.created_at));
        task.text("lastUpdatedAt", &timestamp(state.updated_at));
        task.member("ttlMs", &ttl.as_millis().to_string());
        task.member("pollIntervalMs", POLL_INTERVAL_MS);
        match ended {
            Some(Ended::Completed(result)) => task.member("result", result.get()),
            Some(Ended::Failed(error)) => {
                task.member("error", &serde_json::to_string(error).unwrap_or_default());
            }
            Some(Ended::Cancelled) | None => {}
        }
        let written = RawValue::from_string(task.end());
        written.map_err(|_| protocol_error(SERVER_ERROR, "the task cannot be written"))
    }
}

impl State {
    fn is_over(&self) -> bool {
        !matches!(self.status, Status::Working)
    }
}

impl Ended {
    /// A result that is an error of the tool. Clients show the model nothing else of a task.
    fn error(text: &str) -> Self {
        let content = json!([{ "type": "text", "text": text }]);
        let result = json!({ "resultType": "complete", "content": content, "isError": true });
        Self::Completed(raw(result).unwrap_or_else(|| RawValue::NULL.to_owned()))
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

fn timestamp(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
