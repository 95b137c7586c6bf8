//! Forwards TCP connections to the Unix listener.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::WayOut;
use crate::runtime::AcceptBackoff;

/// The most concurrent connections of one port, the proxy's default for a container. More wait in
/// the kernel's queue.
const MAX_CONNECTIONS: usize = 2000;
/// Buffer of each direction of a connection, in bytes.
const BUFFER: usize = 16 << 10;

/// Forwards every connection to the Unix listener.
pub async fn forward(listener: TcpListener, to: WayOut) -> Infallible {
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
        match listener.accept().await {
            Ok((stream, _)) => {
                backoff.reset();
                let serving = serve(stream);
                tokio::spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) => backoff.after(&error).await,
        }
    }
}

/// Copies both ways until a side ends. An error is not reported: the client sees its connection
/// close.
async fn carry(mut stream: TcpStream, to: WayOut) {
    let _ = stream.set_nodelay(true);
    if let Ok(mut upstream) = to.connect().await {
        let _ = copy_bidirectional_with_sizes(&mut stream, &mut upstream, BUFFER, BUFFER).await;
    }
}
