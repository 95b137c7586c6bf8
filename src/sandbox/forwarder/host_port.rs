//! Carries connections to a port of the host's loopback. Each becomes a CONNECT tunnel of the proxy,
//! so that the chain judges what is sent, as for any other host.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::OutsideListener;
use super::tcp::serve_each;

/// Limit on the connections to one port.
const MAX_CONNECTIONS: usize = 500;
/// Limit on the head of the proxy's answer, and on the bytes in which the client's `Host` is sought.
const MAX_HEAD: usize = 16 << 10;

/// Listens at the port on loopback inside. Fails if 127.0.0.1 cannot be used; the kernel may have no
/// IPv6.
pub async fn listen(port: u16) -> io::Result<Vec<TcpListener>> {
    let first = TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), port)).await?;
    let second = TcpListener::bind((IpAddr::from(Ipv6Addr::LOCALHOST), port)).await;
    Ok([Some(first), second.ok()].into_iter().flatten().collect())
}

pub async fn forward(listener: TcpListener, port: u16, to: OutsideListener) -> Infallible {
    let carry = |stream| {
        let to = to.clone();
        async move {
            // An error is not reported: the client notices that its connection closes.
            let _ = carry(stream, port, to).await;
        }
    };
    serve_each(listener, MAX_CONNECTIONS, "a port of the host", carry).await
}

async fn carry(mut stream: TcpStream, port: u16, to: OutsideListener) -> io::Result<()> {
    let _ = stream.set_nodelay(true);
    let mut first = vec![0; MAX_HEAD];
    let length = stream.peek(&mut first).await?;
    let host = named(first.get(..length).unwrap_or_default());
    let mut upstream = to.connect().await?;
    let connect = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    upstream.write_all(connect.as_bytes()).await?;
    let (answer, rest) = answer(&mut upstream).await?;
    if answer.starts_with(b"HTTP/1.1 200") {
        stream.write_all(&rest).await?;
        copy_bidirectional(&mut stream, &mut upstream).await?;
    } else {
        // A client of HTTP takes the denial for the answer to its own request.
        stream.write_all(&[answer, rest].concat()).await?;
        upstream.shutdown().await?;
        copy(&mut upstream, &mut stream).await?;
    }
    Ok(())
}

/// The name that the client's request has for this machine: the proxy compares it with the tunnel's.
fn named(request: &[u8]) -> &'static str {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let mut lines = text.lines();
    match lines.any(|line| line.starts_with("host:") && line.contains(" 127.0.0.1")) {
        true => "127.0.0.1",
        false => "localhost",
    }
}

/// The head of the proxy's answer, and the bytes after it.
async fn answer(upstream: &mut UnixStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let rest = head.split_off(end + 4);
            return Ok((head, rest));
        }
        if head.len() > MAX_HEAD || upstream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}
