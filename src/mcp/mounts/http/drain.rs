//! Reads and discards the rest of a response, so that its connection can be used again.

use std::time::Duration;

use tokio::time::timeout;

use crate::http::AnswerBody;

/// Limit on the time for draining a response after its message.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit on the bytes that are drained.
const MAX_DRAINED: usize = 64 * 1024;

/// Drains a body in the background.
pub fn drain(mut body: AnswerBody) {
    let rest = async move {
        let mut left = MAX_DRAINED;
        while let Ok(Some(chunk)) = body.chunk().await {
            match left.checked_sub(chunk.len()) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    tokio::spawn(timeout(DRAIN_TIMEOUT, rest));
}
