//! Connections to the world: dialled with a permit, owned by a lease.

mod connect;
mod pool;

use std::net::SocketAddr;

use addons::contract::{Host, Scheme};
use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use super::body::RequestBody;

pub use connect::{Dialled, handshake, open_raw};
pub use pool::{LeasePool, Want, ready};

/// What a connection is good for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
}

/// An HTTP/1.1 connection that serves one request at a time.
pub struct Http1 {
    pub sender: http1::SendRequest<RequestBody>,
    pub address: SocketAddr,
    pub idle_since: Instant,
}

/// A share of an HTTP/2 connection.
#[derive(Clone)]
pub struct Http2 {
    pub sender: http2::SendRequest<RequestBody>,
    pub address: SocketAddr,
}

/// A connection that is ready for a request.
pub enum Upstream {
    Http1(Http1),
    Http2(Http2),
}
