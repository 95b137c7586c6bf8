//! Reads responses of the sidecar within bounds: one JSON object, or lines with one object each.

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::MessageReservation;
use super::endpoint::{Body, Failure, Response};
use crate::http::OwnClient;

/// Limit on a line of a stream, in bytes. The sidecar sends at most 16 KiB of output on a line,
/// which is at most 96 KiB as escaped JSON. Ten times as much leaves room for later versions.
const MAX_LINE: usize = 1 << 20;
/// Limit on the length of an error that is relayed, in characters; the rest is cut off.
const MAX_ERROR: usize = 4096;
/// Limit on the bytes drained from an unneeded body. The connection of a longer body is closed.
const MAX_DRAINED: usize = 64 * 1024;

/// The response to an operation.
pub enum Answered {
    /// The operation's result.
    Done(Box<RawValue>),
    /// The sidecar's reason for the failure.
    Failed(String),
}

#[derive(Deserialize)]
struct Envelope {
    ok: bool,
    result: Option<Box<RawValue>>,
    error: Option<String>,
}

impl Answered {
    /// Reads a response that is one JSON object. Fails with [`Failure::Wrong`] if the response is
    /// longer than `limits.inspect_body_bytes` or does not have the form of a sidecar's response.
    pub async fn read(client: &OwnClient, response: Response) -> Result<Self, Failure> {
        let status = response.status;
        if response.media_type != "application/json" {
            return Err(no_sidecar(status));
        }
        let most = client.limits().inspect_body_bytes;
        let text = read_whole(client, response.body, most, "limits.inspect_body_bytes").await?;
        let envelope: Envelope = serde_json::from_slice(&text).map_err(|_| no_sidecar(status))?;
        match envelope {
            Envelope {
                ok: true,
                result: Some(result),
                ..
            } if status == StatusCode::OK => Ok(Self::Done(result)),
            Envelope {
                ok: false,
                error: Some(error),
                ..
            } => Ok(Self::Failed(shortened(&error))),
            _ => Err(no_sidecar(status)),
        }
    }
}

/// Cuts a sentence of the sidecar to [`MAX_ERROR`].
pub fn shortened(sentence: &str) -> String {
    sentence.chars().take(MAX_ERROR).collect()
}

/// The failure for a response that no coding sidecar sends: another program may listen at the
/// address.
pub fn no_sidecar(status: StatusCode) -> Failure {
    let status = status.as_u16();
    Failure::Wrong(format!(
        "the sidecar answered {status} in a form that no coding sidecar has: does another program listen there?"
    ))
}

/// Reads a whole body. Fails if the body is longer than `most` bytes, or the memory budget is used
/// up. `limit` names the limit in the error.
pub async fn read_whole(
    client: &OwnClient,
    mut body: Body,
    most: usize,
    limit: &str,
) -> Result<Vec<u8>, Failure> {
    let mut reservation = MessageReservation::default();
    let mut text = Vec::new();
    while let Some(chunk) = body.chunk().await? {
        if text.len().saturating_add(chunk.len()) > most {
            let why = format!("the sidecar answered with more than {most} bytes ({limit})");
            return Err(Failure::Wrong(why));
        }
        text.extend_from_slice(&chunk);
        let reserved = reservation.grow_to(client, text.capacity());
        reserved.map_err(Failure::Denied)?;
    }
    Ok(text)
}

/// Drains the rest of a body, at most [`MAX_DRAINED`] bytes, so that its connection can be reused.
pub async fn drain(mut body: Body) {
    let mut left = MAX_DRAINED;
    while let Ok(Some(chunk)) = body.chunk().await {
        match left.checked_sub(chunk.len()) {
            Some(less) => left = less,
            None => return,
        }
    }
}

/// The lines of a body.
pub struct Lines {
    client: OwnClient,
    body: Body,
    held: BytesMut,
    /// Bytes of `held` that are known to contain no line end.
    searched: usize,
    reservation: MessageReservation,
}

impl Lines {
    pub fn of(client: &OwnClient, body: Body) -> Self {
        Self {
            client: client.clone(),
            body,
            held: BytesMut::new(),
            searched: 0,
            reservation: MessageReservation::default(),
        }
    }

    /// The next line without its line feed; `None` at the end of the body. A last line without a
    /// line feed is dropped. Fails if more than [`MAX_LINE`] bytes have no line feed. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let new = self.held.iter().skip(self.searched);
            if let Some(at) = new.clone().position(|byte| *byte == b'\n') {
                let line = self.held.split_to(self.searched.saturating_add(at));
                self.searched = 0;
                // Removes the line end.
                drop(self.held.split_to(1.min(self.held.len())));
                return Ok(Some(line.freeze()));
            }
            self.searched = self.held.len();
            if self.searched > MAX_LINE {
                let why = format!("the sidecar sent a line of more than {MAX_LINE} bytes");
                return Err(Failure::Wrong(why));
            }
            let Some(chunk) = self.body.chunk().await? else {
                return Ok(None);
            };
            self.held.extend_from_slice(&chunk);
            let reserved = self.reservation.grow_to(&self.client, self.held.capacity());
            reserved.map_err(Failure::Denied)?;
        }
    }

    /// Returns the rest of the body, for the caller to drain.
    pub fn into_body(self) -> Body {
        self.body
    }
}
