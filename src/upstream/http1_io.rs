//! The stream below an HTTP/1.1 connection to an upstream.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that notes whether the upstream has sent a byte, and that hides failed writes.
///
/// An upstream may refuse a request by its head, answer and close the connection while the body is
/// still being sent. The write then fails before the answer is read, and hyper would drop the
/// answer with the connection. So what can no longer be sent is discarded until the answer has been
/// read, which ends with the end of the stream or its error.
pub struct Http1Io<T> {
    stream: T,
    received: Arc<AtomicBool>,
    /// A write has failed, and later ones are discarded.
    discards: bool,
    /// The stream has ended or a read has failed, so nothing is left that a write error could hide.
    has_ended: bool,
}

impl<T> Http1Io<T> {
    /// Wraps a stream. Each read that returns a byte sets `received`.
    pub fn new(stream: T, received: Arc<AtomicBool>) -> Self {
        Self {
            stream,
            received,
            discards: false,
            has_ended: false,
        }
    }

    /// Writes with `write`, unless a write has failed. Returns `discarded` in place of the error of
    /// a connection that the upstream has closed.
    fn write<R>(
        &mut self,
        discarded: R,
        write: impl FnOnce(Pin<&mut T>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>>
    where
        T: Unpin,
    {
        if !self.discards || self.has_ended {
            match write(Pin::new(&mut self.stream)) {
                Poll::Ready(Err(error)) if !self.has_ended && is_closed(&error) => {
                    self.discards = true;
                }
                written => return written,
            }
        }
        Poll::Ready(Ok(discarded))
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
    )
}

impl<T: AsyncRead + Unpin> AsyncRead for Http1Io<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if buffer.filled().len() > before {
            self.received.store(true, Ordering::Relaxed);
        } else {
            self.has_ended = true;
            if self.discards && read.is_ok() {
                // The failed write took the error of the reset, so this end is not a regular one.
                return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
            }
        }
        Poll::Ready(read)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Http1Io<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(bytes.len(), |stream| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        self.write(all, |stream| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write((), |stream| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A stream whose peer has answered and then reset the connection.
    async fn reset_after(answer: &[u8]) -> (Http1Io<TcpStream>, Arc<AtomicBool>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
        let mut peer = listener.accept().await.unwrap().0;
        peer.write_all(answer).await.unwrap();
        let received = Arc::default();
        let mut io = Http1Io::new(stream.unwrap(), Arc::clone(&received));
        // Unread at the peer, so that its close resets the connection.
        io.write_all(b"head").await.unwrap();
        peer.readable().await.unwrap();
        drop(peer);
        (io, received)
    }

    #[tokio::test]
    async fn an_answer_is_read_after_writes_have_failed() {
        let (mut io, received) = reset_after(b"HTTP/1.1 401 Unauthorized").await;
        for _ in 0..10 {
            io.write_all(&[0; 65_536]).await.unwrap();
            io.flush().await.unwrap();
        }
        assert!(!received.load(Ordering::Relaxed));
        let mut answer = Vec::new();
        // A body that only the end of the connection ends is not complete.
        assert!(io.read_to_end(&mut answer).await.is_err());
        assert_eq!(answer, b"HTTP/1.1 401 Unauthorized");
        assert!(received.load(Ordering::Relaxed));
        assert!(io.write_all(b"more").await.is_err());
    }
}
