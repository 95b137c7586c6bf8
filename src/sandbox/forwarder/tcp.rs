//! Forwards TCP connections to the Unix listener.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::OutsideListener;
use crate::runtime::AcceptBackoff;

/// The most concurrent connections of one port, equal to the default of
/// `limits.max_connections_per_container`. More wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 2000;
/// Buffer of each direction of a connection, in bytes.
const BUFFER: usize = 16 << 10;

/// Forwards every connection to the Unix listener.
pub async fn forward(listener: TcpListener, to: OutsideListener) -> Infallible {
    let carry = |stream| carry(stream, to.clone());
    serve_each(listener, MAX_CONNECTIONS, "a forwarded port", carry).await
}

/// Serves every connection of a listener, at most `most` at once.
pub(super) async fn serve_each<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    most: usize,
    name: &'static str,
    serve: impl Fn(TcpStream) -> F,
) -> Infallible {
    let free = Arc::new(Semaphore::new(most));
    let mut backoff = AcceptBackoff::new(name);
    loop {
        let permit = Arc::clone(&free).acquire_owned().await;
        let (stream, _) = backoff.retry(|| listener.accept()).await;
        let serving = serve(stream);
        tokio::spawn(async move {
            serving.await;
            drop(permit);
        });
    }
}

/// Copies both ways until both sides have closed their direction or one fails. An error is not
/// reported: the client notices that its connection closes.
async fn carry(mut stream: TcpStream, to: OutsideListener) {
    let _ = stream.set_nodelay(true);
    if let Ok(mut upstream) = to.connect().await {
        let _ = copy_bidirectional_with_sizes(&mut stream, &mut upstream, BUFFER, BUFFER).await;
    }
}
