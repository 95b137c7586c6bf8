//! Client sockets, which report activity to the idle tracker.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::http::IdleTracker;
use crate::runtime::has_hung_up;

/// A client's socket.
pub trait Socket: AsyncRead + AsyncWrite + AsFd + Unpin + Send + Sized + 'static {
    /// Deregisters the socket from its runtime. The returned function registers it with the runtime
    /// on which it is called.
    fn leave(self) -> io::Result<impl FnOnce() -> io::Result<Self> + Send + 'static>;
}

impl Socket for TcpStream {
    fn leave(self) -> io::Result<impl FnOnce() -> io::Result<Self> + Send + 'static> {
        let socket = self.into_std()?;
        Ok(move || Self::from_std(socket))
    }
}

impl Socket for UnixStream {
    fn leave(self) -> io::Result<impl FnOnce() -> io::Result<Self> + Send + 'static> {
        let socket = self.into_std()?;
        Ok(move || Self::from_std(socket))
    }
}

/// A stream over a client's socket that reports reads and writes to the idle tracker.
pub struct ClientIo<S> {
    socket: S,
    idle: Arc<IdleTracker>,
    /// Whether hyper's own answer to a head that it cannot parse is left out.
    is_silent: bool,
}

impl<S> ClientIo<S> {
    pub fn new(socket: S, idle: Arc<IdleTracker>) -> Self {
        Self {
            socket,
            idle,
            is_silent: false,
        }
    }

    /// As [`new`](Self::new), for a listener whose clients take an empty body as an allow: a head that
    /// cannot be parsed gets no answer, and the connection closes.
    pub fn silent(socket: S, idle: Arc<IdleTracker>) -> Self {
        Self {
            is_silent: true,
            ..Self::new(socket, idle)
        }
    }
}

/// The length of these bytes without hyper's own answer at their end, which is the last that hyper
/// writes: a status for a bad head, and no body. The gateway's own answers with such a status have a
/// body.
fn without_refusal(bytes: &[u8]) -> usize {
    const STATUSES: [&[u8]; 3] = [b"400 ", b"414 ", b"431 "];
    // A response to HTTP/1.0 has that version.
    const VERSIONS: [&[u8]; 2] = [b"HTTP/1.1 ", b"HTTP/1.0 "];
    const LENGTH: usize = VERSIONS[0].len();
    const LONGEST: usize = 256;
    let from = bytes.len().saturating_sub(LONGEST);
    let tail = bytes.get(from..).unwrap_or_default();
    if !tail.ends_with(b"\r\n\r\n") {
        return bytes.len();
    }
    let mut starts = tail.windows(LENGTH);
    let Some(at) = starts.rposition(|start| VERSIONS.contains(&start)) else {
        return bytes.len();
    };
    let head = tail.get(at..).unwrap_or_default();
    let status = head.get(LENGTH..).unwrap_or_default();
    let is_bad = STATUSES.iter().any(|bad| status.starts_with(bad));
    let has = |text: &[u8]| head.windows(text.len()).any(|part| part == text);
    match is_bad && has(b"content-length: 0\r\n") && !has(b"content-type: ") {
        true => from + at,
        false => bytes.len(),
    }
}

impl<S: Socket> AsyncRead for ClientIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            this.idle.read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Socket> AsyncWrite for ClientIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let length = match self.is_silent {
            true => without_refusal(bytes),
            false => bytes.len(),
        };
        if length == 0 && !bytes.is_empty() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let bytes = bytes.get(..length).unwrap_or_default();
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.idle.wrote(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_silent {
            // hyper's own answer has no body, so its head comes alone.
            let mut filled = slices.iter().filter(|slice| !slice.is_empty());
            if let (Some(head), None) = (filled.next(), filled.next()) {
                return self.poll_write(context, head);
            }
        }
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.idle.wrote(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// Fails if the client has disconnected while a request waits in [`IdleTracker::held`] or the
    /// proxy streams its own response. hyper itself notices a disconnect only if the request's body
    /// has been read and no other request follows. hyper flushes whenever the connection's task
    /// runs, so the check is made here, at most twice a second.
    ///
    /// If the client has sent more than the receive window holds, its FIN arrives only after the
    /// proxy has read those bytes.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.idle.takes_client_check() && has_hung_up(&self.socket) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
