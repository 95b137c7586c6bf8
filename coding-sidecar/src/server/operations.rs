//! Runs file operations on a few dedicated threads, with a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::body::WholeBody;
use super::reply::{Refusal, Reply, json, overloaded, success};
use crate::connection::Stream;
use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::Workspace;

/// The most concurrent operations, with one thread each. More would not finish sooner on one disk.
pub const THREADS: usize = 8;
/// The time that a thread without an operation is kept: longer than any process runs.
pub const THREADS_KEPT: Duration = Duration::from_secs(u32::MAX as u64);
/// The most operations that run or wait for a thread.
pub const OPERATIONS_MAX: usize = THREADS + 64;
/// The most concurrent searches. A search may keep a processor busy for long; the other threads are
/// left to operations on one file or folder.
const SEARCHES_MAX: usize = THREADS / 2;
/// The most time of an operation, including its wait for a thread.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time after [`DEADLINE`] at which the client gets an error if the operation still runs. The
/// thread of the operation stays busy until the operation ends.
const GRACE: Duration = Duration::from_secs(2);

/// An operation on the body of a request; returns the body of the response.
pub type Operation = fn(&Workspace, Vec<u8>, &Work) -> Result<Vec<u8>, Refusal>;

/// Parses the request in `body`, runs `operation`, and encodes the result. An invalid request and a
/// failed operation are refused with 400.
pub fn perform<Q: DeserializeOwned, R: Serialize>(
    operation: fn(&Workspace, Q, &Work) -> Result<R, Failure>,
    workspace: &Workspace,
    body: Vec<u8>,
    work: &Work,
) -> Result<Vec<u8>, Refusal> {
    let request = parse(&body)?;
    drop(body);
    let outcome = operation(workspace, request, work);
    outcome
        .map(success)
        .map_err(|failure| Refusal::failed(failure.to_string()))
}

/// Parses the request in a body, which must be a JSON object.
pub fn parse<Q: DeserializeOwned>(body: &[u8]) -> Result<Q, Refusal> {
    // serde would also accept an array, with the fields as its elements.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refusal::failed(
            "the request is not valid: the body is not a JSON object",
        ));
    }
    serde_json::from_slice(body)
        .map_err(|error| Refusal::failed(format!("the request is not valid: {error}")))
}

/// Starts all threads of operations, since later the process table may be full. The runtime keeps
/// them if it was built with [`THREADS_KEPT`].
///
/// # Errors
///
/// A sentence, if no thread can be started.
pub fn start_threads() -> Result<(), String> {
    // tokio panics if it cannot start the first thread of its pool, so this tries to start one.
    thread::Builder::new()
        .spawn(|| {})
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    // The gate keeps the first threads busy, so that each task starts another thread.
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..THREADS {
        let gate = gate.clone();
        spawn_blocking(move || drop(gate.lock()));
    }
    drop(closed);
    Ok(())
}

/// The kind of an operation, by the work that it does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Reads or changes one file or folder.
    File,
    /// Reads many files. At most [`SEARCHES_MAX`] run at once.
    Search,
}

/// Runs file operations below one root.
pub struct Operations {
    workspace: Arc<Workspace>,
    places: Arc<Semaphore>,
    searches: Arc<Semaphore>,
}

/// Cancels an operation when dropped: the client has disconnected, the operation is overdue, or the
/// sidecar shuts down. Has no effect after the operation has ended.
struct CancelOnDrop(Arc<Work>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Operations {
    /// Prepares for operations in `workspace`.
    pub fn new(workspace: Workspace) -> Self {
        Self {
            workspace: Arc::new(workspace),
            places: Arc::new(Semaphore::new(OPERATIONS_MAX)),
            searches: Arc::new(Semaphore::new(SEARCHES_MAX)),
        }
    }

    /// Runs one operation. Dropping the future cancels the operation, and so does a client that
    /// disconnects.
    pub async fn run(
        &self,
        operation: Operation,
        kind: Kind,
        body: WholeBody,
        client: &Stream,
    ) -> Result<Reply, Refusal> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Err(overloaded("too many operations are under way"));
        };
        let work = Arc::new(Work::new(Instant::now() + DEADLINE));
        let cancel = CancelOnDrop(work.clone());
        let workspace = self.workspace.clone();
        let running = Arc::new(AtomicBool::new(false));
        let begun = running.clone();
        let task = async {
            let turn = match kind {
                Kind::File => None,
                Kind::Search => self.searches.clone().acquire_owned().await.ok(),
            };
            spawn_blocking(move || {
                begun.store(true, Ordering::Relaxed);
                let WholeBody { bytes, budget } = body;
                let response = operation(&workspace, bytes, &work);
                drop((place, turn, budget));
                response
            })
            .await
        };
        let outcome = tokio::select! {
            outcome = task => outcome,
            () = client.hung_up() => return Err(Refusal::failed("the client has disconnected")),
            refusal = overdue(&running, kind) => return Err(refusal),
        };
        drop(cancel);
        match outcome {
            Ok(response) => response.map(|text| json(StatusCode::OK, text)),
            // The operation panicked; the message is on standard error.
            Err(_) => Err(Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the operation failed because of a bug in the sidecar",
            )),
        }
    }
}

/// Waits until the operation is overdue: it has waited for a thread for too long, or has run for
/// too long. Returns the refusal with the reason.
async fn overdue(running: &AtomicBool, kind: Kind) -> Refusal {
    let seconds = DEADLINE.as_secs();
    sleep(DEADLINE).await;
    if !running.load(Ordering::Relaxed) {
        return overloaded(&format!(
            "the operation waited {seconds} seconds for other operations"
        ));
    }
    sleep(GRACE).await;
    let cause = match kind {
        Kind::File => "the file system does not answer",
        Kind::Search => {
            "the pattern takes too long for long lines, or the file system does not answer"
        }
    };
    Refusal::failed(format!(
        "the operation did not end within {seconds} seconds: {cause}"
    ))
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    async fn reason(running: bool, kind: Kind) -> (StatusCode, String) {
        let reply = Reply::from(overdue(&AtomicBool::new(running), kind).await);
        let status = reply.status();
        let mut body = std::pin::pin!(reply.into_body());
        let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
        let data = frame.unwrap().unwrap().into_data().unwrap();
        (status, String::from_utf8(data.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_of_an_overdue_operation_has_the_cause() {
        // Running, kind, status, part of the error.
        let rows = [
            (false, Kind::File, 503, "waited 60 seconds for other"),
            (false, Kind::Search, 503, "waited 60 seconds for other"),
            (
                true,
                Kind::File,
                400,
                "60 seconds: the file system does not",
            ),
            (true, Kind::Search, 400, "60 seconds: the pattern takes too"),
        ];
        for (running, kind, expected, part) in rows {
            let (status, error) = reason(running, kind).await;
            assert_eq!(status.as_u16(), expected, "{error}");
            assert!(error.contains(part), "{error}");
        }
    }
}
