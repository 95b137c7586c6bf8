//! Support for tests of the real binary: an origin that records the requests that reach it, the
//! proxy with a configuration for each test, and clients of every kind.

mod certificates;
mod cgi;
mod clients;
mod dev;
mod exchange;
pub mod frames;
mod github;
pub mod installed;
mod left_out;
mod lfs;
pub mod listener;
pub mod nameserver;
mod origin;
mod ports;
mod proxy;
mod routes;
mod sidecar;
mod tunnel;
mod yaml;

pub use clients::{NODE_AGENT, Ran};
pub use dev::Dev;
pub use exchange::{Reply, read_connect_reply, read_reply, read_request};
pub use left_out::{left_out, summarize};
pub use lfs::FILES;
pub use nameserver::Nameserver;
pub use origin::{Origin, RawOrigin, Seen};
pub use ports::{closed_address, free_address};
pub use proxy::{Proxy, SANDBOX, Setup};
pub use routes::PACE;
pub use sidecar::{Sidecar, Transport};
pub use tunnel::{Tls, assert_closes, connect_from, handshake, tls_config_trusting};
pub use yaml::{yaml, yaml_documents};

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Timeout for an event that a test waits for, long enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

/// Source address of the second container, in tests with two.
pub const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Source address at which no container is registered.
pub const UNKNOWN_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// Checks a condition every 20 ms until it holds. Panics after `within`, with `what` as the name
/// of the condition.
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < until, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The `expires_at` of a registration that expires after this time.
pub fn expires_in(lifetime: Duration) -> String {
    let end = OffsetDateTime::now_utc() + lifetime;
    end.format(&Rfc3339).unwrap()
}

/// Incompressible bytes.
pub fn incompressible(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}
