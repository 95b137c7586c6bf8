//! Reading on after a denial, so that a client that is still writing sees the answer rather than
//! a reset.

use std::time::Duration;

use addons::contract::Denial;
use bytes::Bytes;
use http::Version;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const DRAIN_BYTES: u64 = 1 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// For a client that reads no answer before it has sent all: as long as a push of 100 MB takes
/// over a line of 8 Mbit/s.
const ANSWERED_DRAIN_TIME: Duration = Duration::from_secs(100);

/// A denial by a filter, while what remains of the body is thrown away.
pub struct Denied {
    denial: Denial,
    draining: Option<JoinHandle<()>>,
}

impl Denied {
    pub fn new(denial: Denial, rest: Option<Incoming>) -> Self {
        let draining = rest.map(|rest| tokio::spawn(drain(rest, &denial)));
        Self { denial, draining }
    }

    /// The denial, once it may be answered: at once, but over HTTP/2 to a client that reads no
    /// answer before it has sent all. libcurl spins there when a stream is answered early.
    pub async fn when_due(self, version: Version) -> Denial {
        if version == Version::HTTP_2
            && self.denial.answer().is_some()
            && let Some(draining) = self.draining
        {
            // It fails only where the runtime ends.
            let _ = draining.await;
        }
        self.denial
    }
}

/// Throws away what remains of a denied body, within bounds.
pub fn drain(mut body: Incoming, denial: &Denial) -> impl Future<Output = ()> + use<> {
    let (mut left, time) = match denial.answer() {
        Some(answer) => (answer.drain_bytes, ANSWERED_DRAIN_TIME),
        None => (DRAIN_BYTES, DRAIN_TIME),
    };
    let draining = async move {
        while !body.is_end_stream()
            && left > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len) as u64);
        }
    };
    async move {
        // Whether or not all was read, the answer goes out.
        let _ = timeout(time, draining).await;
    }
}
