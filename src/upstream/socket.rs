//! Sockets of upstream connections. Their number is limited in total and for each lease: a sandbox
//! must not use up the file descriptors of the process. Each thread has its own runtime, and a
//! socket is registered with one of them. When another thread takes a connection from the pool, the
//! socket is registered with that thread's runtime instead.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};

use addons::contract::Principal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of parts into which the sockets are divided. One lease may take one part. Another
/// part is reserved for the appliance's own requests.
const PARTS: usize = 4;

pub struct SocketBudget {
    leases: Arc<Semaphore>,
    per_lease: usize,
    /// For the appliance's own requests, such as token refreshes, for which many flows wait.
    appliance: Arc<Semaphore>,
}

/// Socket permits of one lease.
struct LeaseSockets(Arc<Semaphore>);

/// Permission to hold one upstream socket, until it is dropped.
#[derive(Debug)]
pub struct SocketPermit {
    /// Of all leases together, or of the appliance.
    _shared: OwnedSemaphorePermit,
    /// `None` for the appliance's own requests.
    _of_lease: Option<OwnedSemaphorePermit>,
}

impl SocketBudget {
    /// Divides `all` sockets: a quarter, rounded up, for the appliance; the rest, at least one, for
    /// all leases together. One lease may hold as many as the appliance.
    pub fn new(all: usize) -> Self {
        let all = all.min(Semaphore::MAX_PERMITS);
        let part = all.div_ceil(PARTS);
        Self {
            leases: Arc::new(Semaphore::new((all - part).max(1))),
            per_lease: part,
            appliance: Arc::new(Semaphore::new(part)),
        }
    }

    /// Takes a permit for a principal; `None` if no permit is left for its lease, for all leases
    /// together, or for the appliance.
    pub fn take(&self, principal: &Principal) -> Option<SocketPermit> {
        let Some(container) = principal.lease() else {
            return Some(SocketPermit {
                _shared: Arc::clone(&self.appliance).try_acquire_owned().ok()?,
                _of_lease: None,
            });
        };
        let own = || LeaseSockets(Arc::new(Semaphore::new(self.per_lease)));
        let own = Arc::clone(&container.state_or_init(own).0);
        let own = own.try_acquire_owned().ok()?;
        Some(SocketPermit {
            _shared: Arc::clone(&self.leases).try_acquire_owned().ok()?,
            _of_lease: Some(own),
        })
    }
}

/// The thread whose runtime watches a socket. If another thread uses the connection without moving
/// the socket first, each event of the socket costs a wake-up across cores.
#[derive(Debug)]
pub struct Home {
    thread: ThreadId,
    /// Shared with the socket, which moves before its next read or write if this is set.
    move_pending: Arc<AtomicBool>,
}

impl Home {
    /// The home of a socket that the calling thread has dialled.
    pub(super) fn here(move_pending: Arc<AtomicBool>) -> Self {
        Self {
            thread: thread::current().id(),
            move_pending,
        }
    }

    pub fn is_here(&self) -> bool {
        self.thread == thread::current().id()
    }

    /// Lets the runtime of this thread watch the socket, from the next read or write on.
    pub fn move_here(&mut self) {
        if !self.is_here() {
            self.thread = thread::current().id();
            self.move_pending.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub struct UpstreamSocket {
    stream: TcpStream,
    move_pending: Arc<AtomicBool>,
    _permit: SocketPermit,
}

impl UpstreamSocket {
    pub(super) async fn connect(address: SocketAddr, permit: SocketPermit) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            move_pending: Arc::default(),
            _permit: permit,
        })
    }

    /// Returns the socket's home: the calling thread. Call this on the thread that dialled.
    pub(super) fn home(&self) -> Home {
        Home::here(Arc::clone(&self.move_pending))
    }

    /// The stream, for a read or a write. Moves the socket first if a move is pending.
    fn stream(&mut self, context: &Context<'_>) -> Pin<&mut TcpStream> {
        if self.move_pending.load(Ordering::Relaxed) {
            self.move_pending.store(false, Ordering::Relaxed);
            // If this fails, the socket stays with the old runtime: slower, but correct.
            if let Ok(watched_here) = self.watch_here() {
                self.stream = watched_here;
                // A pending read was registered with the old runtime, which no longer reports
                // events of this socket: the task must poll the read again.
                context.waker().wake_by_ref();
            }
        }
        Pin::new(&mut self.stream)
    }

    fn watch_here(&self) -> io::Result<TcpStream> {
        let socket = self.stream.as_fd().try_clone_to_owned()?;
        TcpStream::from_std(socket.into())
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
        self.stream(context).poll_read(context, buffer)
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream(context).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream(context).poll_write_vectored(context, slices)
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::task::{Wake, Waker};

    use addons::contract::System;
    use tokio::runtime::Builder;

    use super::*;

    #[derive(Default)]
    struct WakeFlag(AtomicBool);

    impl Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_write_that_moves_the_socket_wakes_the_task_to_read_again() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let principal = Principal::System(Arc::new(System {
            name: "test".into(),
            hosts: Vec::new(),
            trust_private: true,
            url_secrets: Default::default(),
        }));
        let permit = SocketBudget::new(4).take(&principal).unwrap();
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let connect = async {
            let socket = UpstreamSocket::connect(address, permit).await.unwrap();
            (socket.home(), socket)
        };
        let (mut home, mut socket) = thread::scope(|scope| {
            let connecting = scope.spawn(|| runtime().block_on(connect));
            connecting.join().unwrap()
        });
        home.move_here();
        let woken = Arc::new(WakeFlag::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let runtime = runtime();
        let _entered = runtime.enter();
        // Pending: the runtime has not looked at the socket yet, so only the move can wake the
        // task.
        let write = Pin::new(&mut socket).poll_write(&mut context, b"x");
        assert!(write.is_pending());
        assert!(woken.0.load(Ordering::Relaxed));
    }
}
