//! A stream from which bytes were read ahead.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::head_lines::HeadLines;

/// A stream, and bytes that were read from it already. A reader gets these bytes first.
pub struct ReadAhead<I> {
    io: I,
    bytes: Bytes,
    heads: Option<Arc<HeadLines>>,
}

impl<I> ReadAhead<I> {
    pub fn new(io: I) -> Self {
        Self {
            io,
            bytes: Bytes::new(),
            heads: None,
        }
    }

    /// Counts the lines of heads from now on. Once a head is long, reads stay pending and wake no
    /// task: the caller watches [`HeadLines::is_long`], and then takes the stream from its reader.
    pub fn count(&mut self, heads: Arc<HeadLines>) {
        self.heads = Some(heads);
    }

    /// Puts back bytes for the next reader.
    pub fn unread(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            // Dropped: an empty `bytes` would keep the buffer of which it is a slice.
        } else if self.bytes.is_empty() {
            self.bytes = bytes;
        } else {
            self.bytes = [bytes, std::mem::take(&mut self.bytes)].concat().into();
        }
    }
}

impl<I: AsyncRead + Unpin> ReadAhead<I> {
    /// Waits until a byte can be read, the stream has ended or it has failed. Holds no buffer
    /// meanwhile. Cancel safe.
    pub async fn readable(&mut self) {
        if self.bytes.has_remaining() {
            return;
        }
        let mut byte = [0];
        let read = poll_fn(|context| {
            let mut buffer = ReadBuf::new(&mut byte);
            let read = ready!(pin!(&mut self.io).poll_read(context, &mut buffer));
            Poll::Ready(read.map(|()| Bytes::copy_from_slice(buffer.filled())))
        });
        // The next read finds the end of the stream, or the failure, again.
        self.bytes = read.await.unwrap_or_default();
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for ReadAhead<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        if this.bytes.has_remaining() {
            let count = this.bytes.len().min(buffer.remaining());
            buffer.put_slice(&this.bytes.split_to(count));
        } else {
            ready!(Pin::new(&mut this.io).poll_read(context, buffer))?;
        }
        let read = buffer.filled().get(before..).unwrap_or_default();
        if this.heads.as_ref().is_some_and(|heads| heads.read(read)) {
            let read = Bytes::copy_from_slice(read);
            buffer.set_filled(before);
            this.unread(read);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for ReadAhead<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_that_were_read_ahead_come_first() {
        let (mut client, server) = duplex(64);
        let mut server = ReadAhead::new(server);
        client.write_all(b"third").await.unwrap();
        server.readable().await;
        server.unread(Bytes::from_static(b"second "));
        server.unread(Bytes::from_static(b"first "));
        drop(client);
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "first second third");
    }

    #[tokio::test]
    async fn the_end_of_a_stream_makes_it_readable() {
        let (client, server) = duplex(64);
        let mut server = ReadAhead::new(server);
        drop(client);
        server.readable().await;
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
    }
}
