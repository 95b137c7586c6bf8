//! The body of a request, bounded in bytes, in time, and in memory over all requests.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::reply::{Refusal, overloaded};

/// The body of `/write` and `/edit`, which hold a file.
pub const FILE_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The body of any other request: the longest command as JSON fits.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// All bodies at once, from their first byte until their operation is done. Four of the largest.
const ALL_BODIES_BYTES_MAX: usize = 4 * FILE_BODY_BYTES_MAX;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The memory that bodies share.
#[derive(Clone)]
pub struct BodyBudget(Arc<Semaphore>);

/// A whole body. It holds its part of the budget.
pub struct WholeBody {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Given back when the operation is done.
    pub budget: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    /// A budget of which nothing is in use.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(ALL_BODIES_BYTES_MAX)))
    }

    /// Reads `body` to its end.
    ///
    /// # Errors
    ///
    /// The refusal for the client.
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
                continue; // Trailers say nothing here.
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
