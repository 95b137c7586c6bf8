//! A body that the proxy writes as data becomes available.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame};

use super::broke_off::BodyError;
use super::exchange::UnderWay;
use super::idle::{Held, IdleTracker};

/// The pieces of a streamed body.
pub type Pieces = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// Sends the pieces of a stream. Until this is dropped, the connection is not idle, and its task
/// checks every second that the client is still connected. hyper drops the body when the client
/// disconnects.
pub struct StreamedBody {
    pieces: Pieces,
    // Declared, and so dropped, before `under_way`: without `under_way` the connection may become
    // idle, and then no hold may be left.
    _held: Held<Arc<IdleTracker>>,
    under_way: UnderWay,
}

impl StreamedBody {
    pub(super) fn new(pieces: Pieces, under_way: UnderWay) -> Self {
        Self {
            pieces,
            _held: under_way.0.idle.hold(),
            under_way,
        }
    }
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let piece = ready!(self.pieces.as_mut().poll_next(context));
        self.under_way.0.idle.moved();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}
