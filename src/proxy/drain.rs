//! Reading on after a denial, so that a client that is still writing sees the answer rather than
//! a reset.

use std::time::Duration;

use addons::contract::Denial;
use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

const DRAIN_BYTES: u64 = 1 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// For a client that reads no answer before it has sent all: as long as a push of 100 MB takes
/// over a line of 8 Mbit/s.
const ANSWERED_DRAIN_TIME: Duration = Duration::from_secs(100);

/// Throws away what remains of a denied body, within bounds and without keeping anyone waiting.
pub fn drain(mut body: Incoming, denial: &Denial) {
    if body.is_end_stream() {
        return;
    }
    let (mut left, time) = match denial.answer() {
        Some(answer) => (answer.drain_bytes, ANSWERED_DRAIN_TIME),
        None => (DRAIN_BYTES, DRAIN_TIME),
    };
    tokio::spawn(timeout(time, async move {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len) as u64);
            if left == 0 {
                return;
            }
        }
    }));
}
