//! Connections to upstreams, limited in total and for each lease: a sandbox must not use up the
//! file descriptors of the process.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use addons::contract::Principal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of parts into which the sockets are divided. One lease may take one part. Another
/// part is reserved for the appliance's own requests.
const PART: usize = 4;

pub struct SocketBudget {
    sandboxes: Arc<Semaphore>,
    of_lease: usize,
    /// For the appliance's own requests, such as token refreshes, for which many flows wait.
    ours: Arc<Semaphore>,
}

/// Socket permits of one lease.
struct OfLease(Arc<Semaphore>);

/// Permission to hold one upstream socket, until it is dropped.
#[derive(Debug)]
pub struct SocketPermit {
    _of_all: OwnedSemaphorePermit,
    /// `None` for the appliance's own requests.
    _of_lease: Option<OwnedSemaphorePermit>,
}

impl SocketBudget {
    /// Allows `all` sockets in total: a quarter, rounded up, to the appliance, and the rest, at
    /// least one, to all leases together.
    pub fn new(all: usize) -> Self {
        let all = all.min(Semaphore::MAX_PERMITS);
        let part = all.div_ceil(PART);
        Self {
            sandboxes: Arc::new(Semaphore::new((all - part).max(1))),
            of_lease: part,
            ours: Arc::new(Semaphore::new(part)),
        }
    }

    /// Takes a permit for a principal; `None` if no permit is left for its lease, for all sandboxes
    /// together, or for the appliance.
    pub fn take(&self, principal: &Principal) -> Option<SocketPermit> {
        let Some(container) = principal.lease() else {
            return Some(SocketPermit {
                _of_all: Arc::clone(&self.ours).try_acquire_owned().ok()?,
                _of_lease: None,
            });
        };
        let own = container.state_or_init(|| OfLease(Arc::new(Semaphore::new(self.of_lease))));
        let own = Arc::clone(&own.0).try_acquire_owned().ok()?;
        Some(SocketPermit {
            _of_all: Arc::clone(&self.sandboxes).try_acquire_owned().ok()?,
            _of_lease: Some(own),
        })
    }
}

#[derive(Debug)]
pub struct UpstreamSocket {
    stream: TcpStream,
    _permit: SocketPermit,
}

impl UpstreamSocket {
    pub(super) async fn connect(address: SocketAddr, permit: SocketPermit) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            _permit: permit,
        })
    }
}

impl AsRef<TcpStream> for UpstreamSocket {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
