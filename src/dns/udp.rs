//! DNS over UDP.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use hickory_resolver::net::xfer::Protocol;
use tokio::net::UdpSocket;
use tokio_util::task::TaskTracker;

use super::service::{Admission, Service};
use crate::runtime::AcceptBackoff;

/// Size of the receive buffer in bytes, far more than any question. A longer datagram is truncated,
/// and refused as malformed if it cannot be parsed then.
const DATAGRAM: usize = 4096;

/// Receives questions until the future is dropped. Answers questions that need not wait (denied,
/// cached) in the same task. Spawns a task on `answering` for each question that must wait, within
/// the limits of [`super::bounds`].
pub(super) async fn receive(socket: Arc<UdpSocket>, service: Arc<Service>, answering: TaskTracker) {
    let mut buffer = vec![0; DATAGRAM];
    let mut backoff = AcceptBackoff::new("the socket of DNS over UDP");
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                backoff.after(&error).await;
                continue;
            }
        };
        backoff.reset();
        let bytes = buffer.get(..length).unwrap_or_default();
        let question = match service.admit(bytes, peer.into(), Protocol::Udp) {
            Admission::Silence => continue,
            Admission::Refusal(answer) => {
                send(&socket, &answer, peer).await;
                continue;
            }
            Admission::Question(question) => question,
        };
        // UDP has no disconnect to wait for. A panic ends the question and not this loop.
        let answer = question.answer(std::future::pending());
        let mut answer = Box::pin(AssertUnwindSafe(answer).catch_unwind());
        let polled = std::future::poll_fn(|context| Poll::Ready(answer.poll_unpin(context)));
        match polled.await {
            Poll::Ready(Ok(Some(answer))) => send(&socket, &answer, peer).await,
            Poll::Ready(Ok(None) | Err(_)) => {}
            Poll::Pending => {
                let socket = Arc::clone(&socket);
                answering.spawn(async move {
                    if let Ok(Some(answer)) = answer.await {
                        send(&socket, &answer, peer).await;
                    }
                });
            }
        }
    }
}

/// Sends a datagram. One that cannot be sent is lost, as any datagram may be.
async fn send(socket: &UdpSocket, answer: &[u8], peer: SocketAddr) {
    let _ = socket.send_to(answer, peer).await;
}
