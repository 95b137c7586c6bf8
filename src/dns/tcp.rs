//! DNS over TCP: each message has a length prefix of two bytes (RFC 1035, section 4.2.2).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::net::xfer::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::service::{Admission, Service};
use crate::runtime::{AcceptBackoff, has_hung_up};

/// Limit for a complete question to arrive, from the start of the connection or the response to the
/// previous question.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Limit for writing a complete response to a client that reads slowly.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Interval at which the client of a waiting question is checked for a disconnect.
const LOOK_FOR_CLIENT: Duration = Duration::from_secs(1);

/// Accepts connections until the future is dropped. Closes a connection if no slot is free for its
/// source or in total.
pub(super) async fn accept(
    listener: TcpListener,
    service: Arc<Service>,
    connections: TaskTracker,
    shutdown: CancellationToken,
) {
    let mut backoff = AcceptBackoff::new("the listener of DNS over TCP");
    loop {
        let (stream, peer) = backoff.retry(|| listener.accept()).await;
        let Some(slot) = service.slot(peer) else {
            continue;
        };
        let (service, shutdown) = (Arc::clone(&service), shutdown.clone());
        connections.spawn(async move {
            let conversation = converse(stream, peer, &service, &shutdown);
            slot.hold_for(conversation).await;
        });
    }
}

/// Answers questions in their order. Returns when the peer closes the connection, is too slow,
/// exceeds its budget or sends a message that is not a query. Also returns after a refusal, and on
/// shutdown after the response under way.
async fn converse(
    mut stream: TcpStream,
    peer: SocketAddr,
    service: &Service,
    shutdown: &CancellationToken,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let read = timeout(READ_LIMIT, read(&mut stream));
        let Some(packet) = shutdown.run_until_cancelled(read).await else {
            return Ok(());
        };
        let packet = packet??;
        match service.admit(&packet, peer.into(), Protocol::Tcp) {
            Admission::Silence => return Ok(()),
            Admission::Refusal(answer) => return write(&mut stream, &answer).await,
            Admission::Question(question) => {
                let Some(answer) = question.answer(hung_up(&stream)).await else {
                    return Ok(());
                };
                write(&mut stream, &answer).await?;
            }
        }
    }
}

/// Returns once the peer has closed the connection or only its sending side: these cannot be
/// distinguished. Polls the socket, since nothing reads from it while an addon makes a question
/// wait.
async fn hung_up(stream: &TcpStream) {
    loop {
        tokio::time::sleep(LOOK_FOR_CLIENT).await;
        if has_hung_up(stream) {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut packet = vec![0; usize::from(length)];
    stream.read_exact(&mut packet).await?;
    Ok(packet)
}

/// Writes the length and the response in one piece.
async fn write(stream: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(answer);
    timeout(WRITE_LIMIT, stream.write_all(&framed)).await?
}
