//! The file operations: run beside the connections, on a few threads, with a deadline.

use std::sync::Arc;
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
/// Operations that run or wait for a thread.
pub const OPERATIONS_MAX: usize = THREADS + 64;
/// The longest that an operation may take, its wait for a thread included.
const DEADLINE: Duration = Duration::from_secs(60);
/// How much later than [`DEADLINE`] a thread is given up that waits for a file system.
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

/// Runs file operations below one root.
pub struct Operations {
    workspace: Arc<Workspace>,
    places: Arc<Semaphore>,
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
        }
    }

    /// Runs one operation. Dropping the future cancels it.
    pub async fn run(
        &self,
        operation: Operation,
        body: WholeBody,
        client: &Stream,
    ) -> Result<Reply, Refusal> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Err(overloaded("too many operations are under way"));
        };
        let work = Arc::new(Work::new(Instant::now() + DEADLINE));
        let cancel = CancelOnDrop(work.clone());
        let workspace = self.workspace.clone();
        let task = spawn_blocking(move || {
            let WholeBody { bytes, budget } = body;
            let answer = operation(&workspace, bytes, &work);
            drop((place, budget));
            answer
        });
        let outcome = tokio::select! {
            outcome = task => outcome,
            () = client.hung_up() => return Err(Refusal::failed("the client went away")),
            () = sleep(DEADLINE + GRACE) => {
                let error = format!("the file system did not answer within {} seconds", DEADLINE.as_secs());
                return Err(Refusal::failed(error));
            }
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
