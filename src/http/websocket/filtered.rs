//! The upstream side of a WebSocket whose messages are filtered.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use addons::contract::MessageFilter;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::MAX_HEAD;
use super::messages::{Failure, Messages};

/// The most bytes read from the upstream at once. With a frame head, they fill the 8 KiB buffer of
/// the relay.
const READ: usize = 8 * 1024 - MAX_HEAD;

/// Limit on the bytes that are read from the client, and discarded, after the proxy has closed the
/// WebSocket. Further bytes end the relay. Closing the socket at once would reset the connection,
/// and the client might not read the close frame.
const DISCARDED: usize = 64 * 1024;

/// An upstream whose messages are filtered. Writes pass unchanged.
///
/// A failure closes the upstream; the client reads a close frame, then the end of the stream.
pub struct FilteredUpstream<U> {
    /// `None` after a failure.
    upstream: Option<U>,
    messages: Messages,
    /// Frames for the client, from at most one read of [`READ`] bytes.
    ready: Bytes,
    failure: Option<Failure>,
    discarded: usize,
}

impl<U> FilteredUpstream<U> {
    pub fn new(upstream: U, filters: Vec<MessageFilter>) -> Self {
        Self {
            upstream: Some(upstream),
            messages: Messages::new(filters),
            ready: Bytes::new(),
            failure: None,
            discarded: 0,
        }
    }

    /// Why the proxy closed the WebSocket, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    fn filter(&mut self, input: Bytes) {
        let mut out = BytesMut::new();
        if let Err(failure) = self.messages.read(input, &mut out) {
            self.failure = Some(failure);
            self.upstream = None;
        }
        self.ready = out.freeze();
    }
}

impl<U: AsyncRead + Unpin> AsyncRead for FilteredUpstream<U> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            let Some(upstream) = &mut this.upstream else {
                return Poll::Ready(Ok(()));
            };
            // On the stack, so that an idle WebSocket keeps no buffer.
            let mut room = [MaybeUninit::uninit(); READ];
            let mut read = ReadBuf::uninit(&mut room);
            ready!(Pin::new(upstream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.filter(Bytes::copy_from_slice(read.filled()));
            if this.failure.is_some() {
                // A pending write must not wait for the upstream, which is closed.
                context.waker().wake_by_ref();
            }
        }
        let count = this.ready.len().min(buffer.remaining());
        buffer.put_slice(&this.ready.split_to(count));
        if this.ready.is_empty() {
            this.ready = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<U: AsyncWrite + Unpin> AsyncWrite for FilteredUpstream<U> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(upstream) = &mut this.upstream {
            return Pin::new(upstream).poll_write(context, bytes);
        }
        this.discarded += bytes.len();
        if this.discarded > DISCARDED {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().upstream {
            Some(upstream) => Pin::new(upstream).poll_flush(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().upstream {
            Some(upstream) => Pin::new(upstream).poll_shutdown(context),
            None => Poll::Ready(Ok(())),
        }
    }
}
