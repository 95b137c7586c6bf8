//! A body of ours that is written as things happen.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame};

use super::broke_off::BodyError;
use super::idle::{Held, IdleTracker};
use super::under_way::UnderWay;

/// What is written, piece by piece.
pub type Pieces = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// Sends the pieces of a stream. Until it ends, its connection is not idle, and the connection's
/// task looks every second whether the client is still there. A client that has gone drops it.
pub struct StreamedBody {
    pieces: Pieces,
    idle: Arc<IdleTracker>,
    // Dropped in this order: the connection may be idle once nothing is under way.
    _held: Held,
    _under_way: UnderWay,
}

impl StreamedBody {
    pub(super) fn new(pieces: Pieces, idle: &Arc<IdleTracker>, under_way: UnderWay) -> Self {
        Self {
            pieces,
            idle: Arc::clone(idle),
            _held: idle.hold(),
            _under_way: under_way,
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
        self.idle.moved();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}
