//! Connections to the world: dialled with a permit, owned by a lease.

mod connect;
mod driver;
mod pool;

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::ThreadId;

use addons::contract::{Host, Scheme};
use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use tokio::time::{Instant, Sleep};

use super::body::RequestBody;

pub use connect::{Dialled, handshake, open_raw};
pub use driver::Driver;
pub use pool::{LeasePool, Want, ready};

/// What a connection is good for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
}

impl Target {
    /// The authority in normal form; the scheme's own port is left out, as clients do.
    pub fn authority(&self) -> String {
        match (self.scheme, self.port) {
            (Scheme::Http, 80) | (Scheme::Https, 443) => self.host.to_string(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

/// An HTTP/1.1 connection that serves one request at a time.
pub struct Http1 {
    pub sender: http1::SendRequest<RequestBody>,
    pub target: Target,
    /// The configuration that it was dialled under, and is good for.
    pub epoch: u64,
    pub address: SocketAddr,
    /// What requests on it say where they go.
    pub host: HeaderValue,
    pub idle_since: Instant,
    /// What has to be polled for it to move.
    pub driver: Driver,
    /// The thread that hears of its socket first.
    pub home: ThreadId,
    /// What its last request was timed with.
    pub timer: Option<Timer>,
}

/// Goes off some time after a request; see [`super::outgoing::within`].
pub type Timer = Pin<Box<Sleep>>;

/// A share of an HTTP/2 connection.
#[derive(Clone)]
pub struct Http2 {
    pub sender: http2::SendRequest<RequestBody>,
    pub address: SocketAddr,
}

/// A connection that is ready for a request.
pub enum Upstream {
    /// Boxed, since it changes hands several times for each request.
    Http1(Box<Http1>),
    Http2(Http2),
}

impl Upstream {
    /// The next frame of a response's body.
    pub fn poll_frame(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self {
            Self::Http1(one) => one
                .driver
                .poll(context, |context| Pin::new(&mut *body).poll_frame(context)),
            Self::Http2(_) => Pin::new(body).poll_frame(context),
        }
    }

    /// Its timer, where it has one already.
    pub fn timer(&mut self) -> Option<&mut Option<Timer>> {
        match self {
            Self::Http1(one) => Some(&mut one.timer),
            Self::Http2(_) => None,
        }
    }

    /// Has the connection go on by itself from here.
    pub fn detach(&mut self) {
        if let Self::Http1(one) = self {
            one.driver.detach();
        }
    }
}
