//! Reads bodies of requests, within limits on bytes, on time and on the memory of all bodies.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::reply::{Refusal, overloaded};

/// The most bytes of a body of `/write` or `/edit`, which may hold the text of a whole file.
pub const FILE_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most bytes of any other body: enough for the longest command as JSON.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// The most bytes of all bodies together: four of the largest. Bytes count from their arrival until
/// their operation has ended or, for `/bash`, the command has been started.
const ALL_BODIES_BYTES_MAX: usize = 4 * FILE_BODY_BYTES_MAX;
/// The most time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The memory that the bodies of all requests share.
pub struct BodyBudget(Arc<Semaphore>);

/// A complete body, with its share of the budget.
pub struct WholeBody {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The share of the budget, which is returned when this is dropped; `None` for an empty body.
    pub budget: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    /// An unused budget.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(ALL_BODIES_BYTES_MAX)))
    }

    /// Reads `body` to its end.
    ///
    /// # Errors
    ///
    /// A refusal for the client: over `limit` bytes, over the timeout, over the budget, or an
    /// incomplete body.
    pub async fn read(&self, body: Incoming, limit: usize) -> Result<WholeBody, Refusal> {
        let announced = body.size_hint().lower();
        if usize::try_from(announced).map_or(true, |announced| announced > limit) {
            return Err(too_large(limit));
        }
        match timeout(BODY_TIMEOUT, self.collect(body, limit)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                format!(
                    "the body did not arrive within {} seconds",
                    BODY_TIMEOUT.as_secs()
                ),
            )),
        }
    }

    async fn collect(&self, mut body: Incoming, limit: usize) -> Result<WholeBody, Refusal> {
        let mut whole = WholeBody {
            bytes: Vec::new(),
            budget: None,
        };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Refusal::new(
                    StatusCode::BAD_REQUEST,
                    format!("the body cannot be read: {error}"),
                )
            })?;
            let Ok(data) = frame.into_data() else {
                continue; // Trailers are ignored.
            };
            if whole.bytes.len().saturating_add(data.len()) > limit {
                return Err(too_large(limit));
            }
            let size = u32::try_from(data.len()).map_err(|_| too_large(limit))?;
            let Ok(part) = self.0.clone().try_acquire_many_owned(size) else {
                return Err(overloaded("other requests fill the memory for bodies"));
            };
            match &mut whole.budget {
                Some(budget) => budget.merge(part),
                None => whole.budget = Some(part),
            }
            whole.bytes.extend_from_slice(&data);
        }
        Ok(whole)
    }
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is longer than {limit} bytes"),
    )
}
