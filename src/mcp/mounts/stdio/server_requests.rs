//! Tracks the requests of a server to the client.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::mcp::message::Id;

/// The most requests of a server that may wait for an answer at once.
const MAX_REQUESTS: usize = 64;

/// Requests of a server that wait for an answer.
#[derive(Default)]
pub(super) struct ServerRequests(Mutex<HashMap<Id, CancellationToken>>);

impl ServerRequests {
    /// Registers a request. Returns a token that is cancelled if the server cancels the request;
    /// `None` if [`MAX_REQUESTS`] wait or the id is in use.
    pub fn begin(&self, id: &Id) -> Option<CancellationToken> {
        let mut requests = self.0.lock();
        if requests.len() >= MAX_REQUESTS || requests.contains_key(id) {
            return None;
        }
        let cancelled = CancellationToken::new();
        requests.insert(id.clone(), cancelled.clone());
        Some(cancelled)
    }

    pub fn end(&self, id: &Id) {
        self.0.lock().remove(id);
    }

    /// Handles the server's cancellation of a request; ignores an unknown id.
    pub fn cancel(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Cancelled {
            request_id: Box<RawValue>,
        }
        let cancelled = params.and_then(|params| serde_json::from_str(params.get()).ok());
        let Some(Cancelled { request_id }) = cancelled else {
            return;
        };
        let requests = self.0.lock();
        let mut named = requests.iter();
        if let Some((_, token)) = named.find(|(id, _)| id.as_json() == request_id.get()) {
            token.cancel();
        }
    }
}
