//! Bytes, both ways.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::WayOut;
use crate::runtime::AcceptBackoff;

/// Connections of one listener at once: what the proxy grants a container by default. More wait
/// in the kernel's queue.
const MAX_CONNECTIONS: usize = 2000;
/// What is held of each direction of a connection, in bytes.
const BUFFER: usize = 16 << 10;

/// Carries every connection to the Unix listener.
pub async fn forward(listener: TcpListener, to: WayOut) -> Infallible {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut backoff = AcceptBackoff::new("a forwarded port");
    loop {
        let permit = Arc::clone(&free).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                backoff.reset();
                let to = to.clone();
                tokio::spawn(async move {
                    carry(stream, &to).await;
                    drop(permit);
                });
            }
            Err(error) => backoff.after(&error).await,
        }
    }
}

/// A side that breaks off, or an appliance that is gone, closes the connection: the client sees
/// it, and nobody else asks.
async fn carry(mut stream: TcpStream, to: &WayOut) {
    let _ = stream.set_nodelay(true);
    if let Ok(mut upstream) = to.connect().await {
        let _ = copy_bidirectional_with_sizes(&mut stream, &mut upstream, BUFFER, BUFFER).await;
    }
}
