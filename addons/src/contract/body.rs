//! Filters that read and change a body while it streams.

use std::collections::{VecDeque, vec_deque};
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::HeaderMap;

use super::denial::Verdict;

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Filters a body as it streams. Chunks have arbitrary sizes; verdict and output must not depend on
/// where the body is cut into chunks.
///
/// A filter holds back at most 64 KiB. A check that needs more must be a
/// [`BodyJudge`](super::BodyJudge). After a denial, the engine sends no more of the body.
pub trait BodyFilter: Send {
    /// Filters a chunk: appends the bytes that may pass to `out`, or denies.
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict;

    /// Ends the body: appends the bytes held back to `out`, or denies. May change the trailers.
    fn end(&mut self, out: &mut BodyOut, trailers: Option<&mut HeaderMap>) -> Verdict;

    /// Whether the filter reads the content, so that an encoded response must be decoded for it. A
    /// request is decoded only for judges.
    fn reads_content(&self) -> bool {
        true
    }

    /// Whether the filter never changes the length of a body, so that the engine can keep
    /// `Content-Length`.
    fn keeps_length(&self) -> bool {
        true
    }
}

/// Makes a filter for one message of a WebSocket, or for the payload of one control frame.
pub type MessageFilter = Box<dyn Fn() -> Box<dyn BodyFilter> + Send>;

/// The output of a filter: bytes that may pass, in order.
#[derive(Default)]
pub struct BodyOut(VecDeque<Bytes>);

impl BodyOut {
    /// Appends a piece; does nothing if it is empty.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.0.push_back(bytes);
        }
    }

    /// Takes the first piece; `None` if no piece is left.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.0.pop_front()
    }

    /// Takes all pieces.
    pub fn drain(&mut self) -> vec_deque::Drain<'_, Bytes> {
        self.0.drain(..)
    }

    /// The number of bytes not yet taken.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether no piece is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
