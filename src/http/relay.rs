//! Relays bytes both ways and counts them, for WebSockets and for passthrough hosts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use addons::contract::{Counters, LiveFlow};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use super::idle::IdleTracker;
use super::permission::Permission;
use super::session::Session;
use crate::runtime::WakeGated;
use crate::snapshot::Snapshot;

/// Relays until both sides have closed their direction, one fails, the idle timeout passes, the
/// lease or the process ends, or a reload forbids the flow. Marks the flow as complete only in the
/// first case.
///
/// The caller must count the flow as under way on the session, since a shutdown ends idle sessions
/// at once.
pub async fn relay<C, U>(
    session: &Session,
    snapshot: &Snapshot,
    live: &mut LiveFlow,
    client: C,
    upstream: U,
) where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let idle = Arc::clone(&session.idle);
    let permitted = Permission::of(&live.flow, snapshot);
    let mut client = CountedIo {
        io: client,
        counters: Arc::clone(&live.flow.counters),
        idle: Arc::clone(&idle),
    };
    let mut upstream = upstream;
    let ended_elsewhere = WakeGated::new(async {
        tokio::select! {
            () = idle.watch(session.timeouts, || {}) => {}
            () = session.ended(permitted.as_ref()) => {}
        }
    });
    tokio::select! {
        biased;
        ended = copy_bidirectional(&mut client, &mut upstream) => {
            if ended.is_ok() {
                live.complete();
            }
        }
        () = ended_elsewhere => {}
    }
}

/// The client's side: counts reads as bytes in and writes as bytes out, and notes the activity.
struct CountedIo<S> {
    io: S,
    counters: Arc<Counters>,
    idle: Arc<IdleTracker>,
}

impl<S> CountedIo<S> {
    fn count(&self, direction: &AtomicU64, bytes: usize) {
        direction.fetch_add(bytes as u64, Ordering::Relaxed);
        self.idle.moved();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        self.count(&self.counters.bytes_in, buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(context, bytes))?;
        self.count(&self.counters.bytes_out, written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
