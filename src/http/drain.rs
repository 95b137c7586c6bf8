//! Drains the body of a denied request, so that a client that is still writing reads the response
//! instead of a reset. A denial may have an answer in the client's protocol, for example in git's.
//! The answer is then sent instead of the JSON response.

use std::time::Duration;

use addons::contract::Denial;
use bytes::Bytes;
use http::Version;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Limits on the bytes and on the time to drain a body after a denial without an answer in the
/// client's protocol.
const DRAIN_BYTES: u64 = 1 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Limit on the time to drain a body that the upstream did not take, nginx's `lingering_time`. There
/// is no limit on its bytes: clients such as curl report a reset, not the response, if the
/// connection closes while they send.
const REST_DRAIN_TIME: Duration = Duration::from_secs(30);

/// Limit on the time to drain a body for a client that sends its whole request before it reads the
/// response (git). A push of 100 MB at 8 Mbit/s takes this long.
const ANSWERED_DRAIN_TIME: Duration = Duration::from_secs(100);

/// A denial that was made while the request's body was read. A separate task drains the rest of the
/// body.
pub struct Denied {
    denial: Denial,
    draining: Option<JoinHandle<()>>,
}

impl Denied {
    pub fn new(denial: Denial, rest: Option<Incoming>) -> Self {
        let draining = rest.map(|rest| tokio::spawn(drain(rest, &denial)));
        Self { denial, draining }
    }

    /// Returns the denial when its response may be sent. That is at once, with one exception: over
    /// HTTP/2, a denial with an answer in the client's protocol waits for the draining. The client
    /// (git) sends its whole request before it reads the response, and libcurl spins if the stream
    /// is answered earlier.
    pub async fn when_due(self, version: Version) -> Denial {
        if version == Version::HTTP_2
            && self.denial.answer().is_some()
            && let Some(draining) = self.draining
        {
            // Fails only if the runtime shuts down.
            let _ = draining.await;
        }
        self.denial
    }
}

/// Reads and discards the rest of a denied body, up to 1 MiB in 5 s. If the denial has an answer in
/// the client's protocol, the limit is the answer's `drain_bytes`, in 100 s if it is higher.
pub fn drain(body: Incoming, denial: &Denial) -> impl Future<Output = ()> + use<> {
    let (most, time) = match denial.answer() {
        Some(answer) if answer.drain_bytes <= DRAIN_BYTES => (answer.drain_bytes, DRAIN_TIME),
        Some(answer) => (answer.drain_bytes, ANSWERED_DRAIN_TIME),
        None => (DRAIN_BYTES, DRAIN_TIME),
    };
    drain_within(body, most, time)
}

/// Reads and discards the rest of a body that the upstream did not take, for up to 30 s.
pub fn drain_rest(body: Incoming) -> impl Future<Output = ()> {
    drain_within(body, u64::MAX, REST_DRAIN_TIME)
}

fn drain_within(mut body: Incoming, mut left: u64, time: Duration) -> impl Future<Output = ()> {
    let draining = async move {
        while !body.is_end_stream()
            && left > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len) as u64);
        }
    };
    async move {
        // The response is sent whether or not the whole body was read.
        let _ = timeout(time, draining).await;
    }
}
