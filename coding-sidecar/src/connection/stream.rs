//! One accepted connection: reads, writes with a timeout, and detects that the client hung up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};

/// The time after which a connection is closed if its client does not accept a byte of a response.
/// Closing it ends the command whose output is sent.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The socket of a client. Reading and writing take a shared reference, so that another task can
/// wait until the client hangs up while hyper has the connection.
pub enum Stream {
    /// A client on the Unix socket.
    Unix(UnixStream),
    /// A client on TCP.
    Tcp(TcpStream),
}

impl Stream {
    /// Waits until the client has closed its connection or its sending half, even if requests that
    /// it sent before are still unread. Cancel safe.
    ///
    /// hyper detects the end of a connection only after it has read all earlier bytes. While it
    /// sends a response and another request waits in its buffer, it does not read.
    pub async fn hung_up(&self) {
        // No socket is registered for priority data, so only `READ_CLOSED` completes this.
        let ready = match self {
            Self::Unix(stream) => stream.ready(Interest::PRIORITY).await,
            Self::Tcp(stream) => stream.ready(Interest::PRIORITY).await,
        };
        // An error means that the runtime shuts down, which ends every command.
        let _ = ready;
    }

    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Unix(stream) => stream.poll_read_ready(context),
            Self::Tcp(stream) => stream.poll_read_ready(context),
        }
    }

    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Unix(stream) => stream.poll_write_ready(context),
            Self::Tcp(stream) => stream.poll_write_ready(context),
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_read(buffer),
            Self::Tcp(stream) => stream.try_read(buffer),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tcp(stream) => stream.try_write(bytes),
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        let done = match self {
            Self::Unix(stream) => rustix::net::shutdown(stream, Shutdown::Write),
            Self::Tcp(stream) => rustix::net::shutdown(stream, Shutdown::Write),
        };
        match done {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A [`Stream`] for hyper. A write fails if the client accepts no byte for [`WRITE_TIMEOUT`].
pub struct Timed {
    stream: Arc<Stream>,
    /// The timeout, while the socket is not writable.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    /// Wraps `stream`.
    pub fn new(stream: Arc<Stream>) -> Self {
        Self {
            stream,
            stalled: None,
        }
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        while let Poll::Ready(ready) = self.stream.poll_write_ready(context) {
            ready?;
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    self.stalled = None;
                    return Poll::Ready(outcome);
                }
            }
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shut_down())
    }
}
