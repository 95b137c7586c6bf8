//! The file operations: run beside the connections, on a few threads, with a deadline.

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

/// Operations at once, one thread for each. More do not finish sooner on one disk.
pub const THREADS: usize = 8;
/// How long a thread without an operation is kept: longer than any process runs.
pub const THREADS_KEPT: Duration = Duration::from_secs(u32::MAX as u64);
/// Operations that run or wait for a thread.
pub const OPERATIONS_MAX: usize = THREADS + 64;
/// Searches at once. They may keep a processor busy for long; the other threads are for operations that
/// do not.
const SEARCHES_MAX: usize = THREADS / 2;
/// The longest that an operation may take, its wait for a thread included.
const DEADLINE: Duration = Duration::from_secs(60);
/// How much later than [`DEADLINE`] a thread is given up that does not look at it.
const GRACE: Duration = Duration::from_secs(2);

/// One operation as the routes name it.
pub type Operation = fn(&Workspace, Vec<u8>, &Work) -> Result<Vec<u8>, Refusal>;

/// Parses the request, runs `operation`, and encodes the result.
pub fn perform<Q: DeserializeOwned, A: Serialize>(
    operation: fn(&Workspace, Q, &Work) -> Result<A, Failure>,
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

/// The request of a body.
pub fn parse<Q: DeserializeOwned>(body: &[u8]) -> Result<Q, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::failed(format!("the request is not valid: {error}")))
}

/// Starts the threads of operations, which a runtime keeps that was built with [`THREADS_KEPT`]. Later
/// the process table may be full.
///
/// # Errors
///
/// A sentence: there is no room for a thread.
pub fn start_threads() -> Result<(), String> {
    // Where tokio cannot start the first thread of its pool, it panics.
    thread::Builder::new()
        .spawn(|| {})
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    // No thread takes a second task before the last one was started.
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..THREADS {
        let gate = gate.clone();
        spawn_blocking(move || drop(gate.lock()));
    }
    drop(closed);
    Ok(())
}

/// What an operation mostly does.
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

/// Ends an operation whose client went away.
struct CancelOnDrop(Arc<Work>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Operations {
    /// Operations in `workspace`.
    pub fn new(workspace: Workspace) -> Self {
        Self {
            workspace: Arc::new(workspace),
            places: Arc::new(Semaphore::new(OPERATIONS_MAX)),
            searches: Arc::new(Semaphore::new(SEARCHES_MAX)),
        }
    }

    /// Runs one operation. Dropping the future cancels it.
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
                let answer = operation(&workspace, bytes, &work);
                drop((place, turn, budget));
                answer
            })
            .await
        };
        let outcome = tokio::select! {
            outcome = task => outcome,
            () = client.hung_up() => return Err(Refusal::failed("the client went away")),
            refusal = overdue(&running, kind) => return Err(refusal),
        };
        drop(cancel);
        match outcome {
            Ok(answer) => answer.map(|text| json(StatusCode::OK, text)),
            // It panicked, and the message is on standard error.
            Err(_) => Err(Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the operation failed for a fault of the sidecar",
            )),
        }
    }
}

/// Completes when an operation has waited or run for too long, with the reason.
async fn overdue(running: &AtomicBool, kind: Kind) -> Refusal {
    let seconds = DEADLINE.as_secs();
    sleep(DEADLINE).await;
    if !running.load(Ordering::Relaxed) {
        return overloaded(&format!(
            "other operations used every thread for {seconds} seconds"
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
    async fn an_overdue_operation_names_what_held_it_up() {
        // Running, kind, status, part of the error.
        let rows = [
            (false, Kind::File, 503, "other operations used every thread"),
            (
                false,
                Kind::Search,
                503,
                "other operations used every thread",
            ),
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
