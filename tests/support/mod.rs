//! What the wire tests stand on: an origin that remembers what reached it, the real binary with
//! a configuration of its own, and clients of every kind.

mod certificates;
mod cgi;
mod clients;
mod exchange;
mod nameserver;
mod origin;
mod proxy;
mod routes;
mod tunnel;

pub use exchange::{Reply, read_reply};
pub use nameserver::Nameserver;
pub use origin::{Origin, RawOrigin, Seen};
pub use proxy::{Proxy, SANDBOX, Setup};
pub use tunnel::{Tls, assert_closes, handshake};

use std::time::{Duration, Instant};

/// Waits until something holds, and says what when it never does.
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < until, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
