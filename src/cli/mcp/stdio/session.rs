//! One session of a client that began with a handshake (up to 2025-11-25).

use http::{HeaderMap, HeaderValue};
use tokio_util::sync::CancellationToken;

use crate::mcp::{PROTOCOL_VERSION, SESSION_ID};

/// One session at the gateway.
pub struct Session {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// Cancelled when another session takes its place, or at the end.
    pub ended: CancellationToken,
}

impl Session {
    pub fn new(id: Option<HeaderValue>, version: Option<HeaderValue>) -> Self {
        Self {
            id,
            version,
            ended: CancellationToken::new(),
        }
    }

    /// The fields of every request in it.
    pub fn fields(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        if let Some(id) = &self.id {
            fields.insert(SESSION_ID, id.clone());
        }
        if let Some(version) = &self.version {
            fields.insert(PROTOCOL_VERSION, version.clone());
        }
        fields
    }

    pub fn has_id(&self) -> bool {
        self.id.is_some()
    }
}
