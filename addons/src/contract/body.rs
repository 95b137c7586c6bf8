//! Looking at a body and changing it while it streams.

use std::collections::{VecDeque, vec_deque};
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::HeaderMap;

use super::denial::Verdict;

/// A future that an addon or the engine hands over.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Looks at a body as it passes. It owns its state, sees chunks that are cut anywhere, and its
/// verdict must not depend on where.
///
/// A filter holds back at most 64 KiB; what needs more of a body is a
/// [`BodyJudge`](super::BodyJudge). A denial ends the body: nothing more of it is sent.
pub trait BodyFilter: Send {
    /// A chunk arrives; what may pass goes to `out`.
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict;

    /// The body ended; what was held back goes to `out`. Trailers may be changed.
    fn end(&mut self, out: &mut BodyOut, trailers: Option<&mut HeaderMap>) -> Verdict;

    /// Whether the filter looks at the content: an encoded response is decoded for it then.
    fn reads_content(&self) -> bool {
        true
    }

    /// Whether as many bytes come out as go in, so that `Content-Length` stays true.
    fn keeps_length(&self) -> bool {
        true
    }
}

/// Makes a filter for one message of a WebSocket, or for the payload of one control frame.
pub type MessageFilter = Box<dyn Fn() -> Box<dyn BodyFilter> + Send>;

/// Where a filter puts what may pass.
#[derive(Default)]
pub struct BodyOut(VecDeque<Bytes>);

impl BodyOut {
    /// Lets bytes pass, in order. Empty pieces are dropped.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.0.push_back(bytes);
        }
    }

    /// Takes the first of what passed.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.0.pop_front()
    }

    /// Takes all that passed so far.
    pub fn drain(&mut self) -> vec_deque::Drain<'_, Bytes> {
        self.0.drain(..)
    }

    /// How many bytes passed and were not taken.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether nothing passed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
