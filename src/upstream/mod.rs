//! Resolves and dials upstreams with permits of the chain, and pools the connections of each lease.

mod answer;
mod answer_cache;
mod body;
mod connect;
mod datagram;
mod dial;
mod driver;
mod failure;
mod http1_io;
mod outbound;
mod own_listeners;
mod pool;
mod resolve;
mod socket;
mod watch;
mod zones;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use addons::contract::{Chain, Endpoint};
use http::{HeaderMap, HeaderValue};
use hyper::client::conn::{http1, http2};
use tokio::time::{Instant, Sleep};

use crate::tls::UpstreamTls;

pub use answer::Answer;
pub use body::{BodyError, RequestBody};
pub use connect::{DialError, handshake, open_raw};
pub use dial::dial;
pub use driver::Driver;
pub use failure::{broke_off, head_too_long, not_answered, not_answered_in_time};
pub use outbound::OutboundClient;
pub use own_listeners::OwnListeners;
pub use pool::{LeasePool, Want, ready};
pub use resolve::{Resolver, ResolverError};
pub use socket::{Home, SocketBudget, SocketPermit, UpstreamSocket};
pub use watch::NameserverWatch;

/// Limit on the header lines of a head over HTTP/1.1, of requests and responses. hyper's own limit,
/// 100, is too low for some clients and servers. Each line more takes 12 instructions for every
/// head, so only connections that need this limit have it.
pub const MAX_HEADER_LINES: usize = 256;

/// Everything needed to connect to upstreams under one configuration.
pub struct Network {
    /// Number of the configuration. A later configuration has a larger number.
    pub generation: u64,
    /// Mints the permits to resolve and to dial.
    pub chain: Arc<Chain>,
    pub resolver: Arc<Resolver>,
    pub sockets: Arc<SocketBudget>,
    pub tls: UpstreamTls,
    /// Limit for the TCP connection, and again for the TLS handshake.
    pub connect_timeout: Duration,
}

/// An HTTP/1.1 connection that serves one request at a time.
pub struct Http1 {
    pub sender: http1::SendRequest<RequestBody>,
    pub endpoint: Endpoint,
    /// The number of the configuration under which the connection was dialled. Flows under another
    /// configuration do not use it.
    pub generation: u64,
    pub address: SocketAddr,
    /// The `Host` header of its requests.
    pub host: HeaderValue,
    pub idle_since: Instant,
    /// How long the upstream keeps the connection open while it is idle, if it said so.
    pub keep_alive: Option<Duration>,
    /// Moves the bytes; the exchange that uses the connection polls it.
    pub driver: Driver,
    pub home: Home,
    /// Whether a byte of the current response has arrived.
    pub received: Arc<AtomicBool>,
    /// Whether the limit on header lines is [`MAX_HEADER_LINES`], not hyper's own.
    pub reads_long_heads: bool,
    /// Timer of the previous request. The next request uses it again if it comes from the same
    /// client connection.
    pub timer: Option<Timer>,
}

/// Limits the wait for a response head.
pub type Timer = Pin<Box<Sleep>>;

/// A handle to an HTTP/2 connection, which concurrent requests of a lease to the endpoint share. A
/// separate task polls the connection.
#[derive(Clone)]
pub struct Http2 {
    pub sender: http2::SendRequest<RequestBody>,
    pub address: SocketAddr,
    /// Counts the handles, one for each exchange under way and one in the pool.
    pub handles: Arc<()>,
}

/// A connection that is ready for a request. Both kinds are boxed, since they are moved several
/// times for each request.
pub enum Upstream {
    Http1(Box<Http1>),
    Http2(Box<Http2>),
}

impl Upstream {
    /// Polls `wanted`, which becomes ready when this connection makes progress. Also polls the
    /// connection itself if it is HTTP/1.1.
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut wanted: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        match self {
            Self::Http1(one) => one.driver.poll(context, wanted),
            Self::Http2(_) => wanted(context),
        }
    }

    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Http1(one) => one.address,
            Self::Http2(one) => one.address,
        }
    }

    /// The slot of the reusable timer; an HTTP/2 connection has none.
    pub fn timer(&mut self) -> Option<&mut Option<Timer>> {
        match self {
            Self::Http1(one) => Some(&mut one.timer),
            Self::Http2(_) => None,
        }
    }

    /// Whether a request that failed can be sent again on another connection, if sending it twice
    /// has the effect of sending it once: the connection ended before a byte of the response.
    pub fn ended_without_response(&self) -> bool {
        match self {
            Self::Http1(one) => !one.received.load(Ordering::Relaxed),
            Self::Http2(one) => one.sender.is_closed(),
        }
    }

    /// Whether a response that was too large for this connection may fit on one that reads long
    /// heads.
    pub fn may_lack_lines(&self) -> bool {
        matches!(self, Self::Http1(one) if !one.reads_long_heads)
    }

    /// Notes the `Keep-Alive` field of a response.
    pub fn note_keep_alive(&mut self, headers: &HeaderMap) {
        if let Self::Http1(one) = self
            && let Some(value) = headers.get("keep-alive")
        {
            one.keep_alive = promised(value);
        }
    }

    /// Moves an HTTP/1.1 connection to a separate task, which polls it from then on. An HTTP/2
    /// connection has such a task already.
    pub fn detach(&mut self) {
        if let Self::Http1(one) = self {
            one.driver.detach();
        }
    }
}

/// The time in `Keep-Alive: timeout=SECONDS`.
fn promised(keep_alive: &HeaderValue) -> Option<Duration> {
    let mut parameters = keep_alive.to_str().ok()?.split(',');
    let seconds = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (name.trim().eq_ignore_ascii_case("timeout")).then(|| value.parse().ok())?
    });
    seconds.map(Duration::from_secs)
}
