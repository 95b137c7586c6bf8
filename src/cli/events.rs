//! The stream of server-sent events in which the admin API sends flows.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::mcp::{EventReader, StreamEvent};

/// Limit on the length of an event, in bytes. The event of a flow is far shorter.
const MAX_EVENT: usize = 16 << 20;

/// The events of a response.
pub(super) struct Events {
    body: Incoming,
    reader: EventReader,
    piece: Bytes,
}

impl Events {
    pub(super) fn new(body: Incoming) -> Self {
        Self {
            body,
            reader: EventReader::new(MAX_EVENT),
            piece: Bytes::new(),
        }
    }

    /// Returns the next event; `None` when the stream has ended, has failed, or has an event over
    /// [`MAX_EVENT`].
    pub(super) async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if let Some(event) = self.reader.next(&mut self.piece).ok()? {
                return Some(event);
            }
            let frame = self.body.frame().await?.ok()?;
            self.piece = frame.into_data().unwrap_or_default();
        }
    }
}
