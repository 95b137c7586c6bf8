//! Limits of the DNS server, overall and for each lease.

use std::num::NonZeroU32;
use std::sync::Arc;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::Semaphore;

/// The most responses a second to all unknown sources together, so that the server cannot be used
/// to flood a forged source address. Further questions get no DNS response.
const UNKNOWN_SOURCE_ANSWERS_PER_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// The most questions a second that are parsed for one lease. Further questions are not parsed and
/// get no DNS response, so that a flood costs little more than receiving it. The limit is far above
/// the default of `dns.queries_per_minute`.
const QUESTIONS_PER_SECOND: NonZeroU32 = NonZeroU32::new(2_000).unwrap();

/// How many questions of one lease may wait for a nameserver at the same time; further questions
/// are refused. If half of `Limits::waiting`, rounded up, is less, that is the limit. Each question
/// may hold several sockets, because the resolver repeats it.
const WAITING_PER_LEASE: usize = 64;

/// How many TCP connections each lease may have; further connections are closed. If half of
/// `Limits::connections`, rounded up, is less, that is the limit.
const CONNECTIONS_PER_LEASE: usize = 32;

/// How many TCP connections all unknown sources together may have; further connections are closed.
/// If half of `Limits::connections`, rounded up, is less, that is the limit.
const UNKNOWN_SOURCE_CONNECTIONS: usize = 32;

/// Concurrency limits of the whole server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most questions that wait for a nameserver; further ones get SERVFAIL.
    pub waiting: usize,
    /// The most TCP connections; further ones are closed.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 512,
            connections: 1_024,
        }
    }
}

/// The limits that all clients share.
pub(super) struct Bounds {
    limits: Limits,
    pub waiting: Semaphore,
    pub connections: Arc<Semaphore>,
    pub unknown_source_answers: DefaultDirectRateLimiter,
    pub unknown_source_connections: Arc<Semaphore>,
}

impl Bounds {
    pub fn new(limits: Limits) -> Self {
        let unknown_sources = UNKNOWN_SOURCE_CONNECTIONS.min(limits.connections.div_ceil(2));
        Self {
            limits,
            waiting: Semaphore::new(limits.waiting),
            connections: Arc::new(Semaphore::new(limits.connections)),
            unknown_source_answers: limiter(UNKNOWN_SOURCE_ANSWERS_PER_SECOND),
            unknown_source_connections: Arc::new(Semaphore::new(unknown_sources)),
        }
    }

    /// Makes the limits of one lease.
    pub fn share(&self) -> Arc<Share> {
        let waiting = WAITING_PER_LEASE.min(self.limits.waiting.div_ceil(2));
        let connections = CONNECTIONS_PER_LEASE.min(self.limits.connections.div_ceil(2));
        Arc::new(Share {
            questions: limiter(QUESTIONS_PER_SECOND),
            waiting: Semaphore::new(waiting),
            connections: Arc::new(Semaphore::new(connections)),
        })
    }
}

/// The limits of one lease, which owns them.
pub(super) struct Share {
    pub questions: DefaultDirectRateLimiter,
    pub waiting: Semaphore,
    pub connections: Arc<Semaphore>,
}

fn limiter(per_second: NonZeroU32) -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(per_second))
}
