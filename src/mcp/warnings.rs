//! Bounds the log lines that a server, or a message judged by a policy, can cause.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::runtime::LogThrottle;

/// The most warnings of one kind about one server or policy bundle in a minute.
const MAX_WARNINGS: u32 = 20;
/// The longest text of a server in a warning, in bytes.
const MAX_TEXT: usize = 256;

/// The subject of a warning. Each has its own limit, so that a server cannot suppress a warning by
/// causing others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A tool that is left out.
    Tool,
    /// A changed definition of a tool.
    Definition,
    /// A name of a tool or prompt.
    Name,
    /// A list.
    List,
    /// A session, or a message in it.
    Session,
    /// A deviation from the protocol that is accepted.
    Deviation,
    /// An evaluation of a policy bundle that took too long.
    PolicyTimeout,
    /// An evaluation of a policy bundle that failed or gave no valid answer.
    PolicyFailure,
    /// A message for which the queue of the policy has no place.
    PolicyQueue,
    /// Request contexts that are removed, since there are too many.
    Context,
}

/// The warnings so far, by server or bundle. The configuration names these, so they are few.
static WARNINGS: LazyLock<Mutex<HashMap<(String, Subject), LogThrottle>>> =
    LazyLock::new(Mutex::default);

/// Calls `log` to log a warning about a server or a policy bundle, unless [`MAX_WARNINGS`] of this
/// subject were logged in the last minute. `log` gets the number of warnings that were left out
/// before, if any were.
pub fn warn(about: &str, subject: Subject, log: impl FnOnce(Option<u64>)) {
    let mut warnings = WARNINGS.lock();
    let key = (about.to_owned(), subject);
    let lines = warnings.entry(key);
    let lines = lines.or_insert_with(|| LogThrottle::of(MAX_WARNINGS));
    let (due, is_last) = (lines.count(), lines.is_full());
    drop(warnings);
    let Some(count) = due else {
        return;
    };
    log(Some(count.saturating_sub(1)).filter(|left_out| *left_out > 0));
    if is_last {
        tracing::warn!(
            server = about,
            ?subject,
            "further warnings of this kind about the MCP server or policy are left out for a minute"
        );
    }
}

/// The deviations that were logged, by server. Their number is bounded like that of [`WARNINGS`].
static DEVIATIONS: LazyLock<Mutex<HashSet<(String, &'static str)>>> = LazyLock::new(Mutex::default);

/// Logs that a server deviates from the protocol in a way that is accepted, since clients accept it.
/// Logs each deviation of a server once.
pub fn deviates(server: &str, deviation: &'static str) {
    if !DEVIATIONS.lock().insert((server.to_owned(), deviation)) {
        return;
    }
    warn(server, Subject::Deviation, |left_out| {
        tracing::warn!(
            server,
            left_out,
            deviation,
            "an MCP server deviates from the protocol, which is accepted"
        );
    });
}

/// A deviation of a response's id.
pub const OTHER_ID: &str = "its responses have the ids of requests in another form, such as \"1\"";

/// The beginning of a server's text.
pub fn excerpt(text: &str) -> &str {
    let end = text.floor_char_boundary(MAX_TEXT);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_warnings_of_one_kind_about_one_server_are_bounded_and_the_others_are_counted() {
        let logged = |server: &str, subject| {
            let mut logged = Vec::new();
            for _ in 0..10_000 {
                warn(server, subject, |left_out| logged.push(left_out));
            }
            logged
        };
        let few = vec![None; MAX_WARNINGS as usize];
        assert_eq!(logged("flooding", Subject::Tool), few);
        assert!(logged("flooding", Subject::Tool).is_empty());
        assert_eq!(logged("flooding", Subject::Definition), few);
        assert_eq!(logged("other", Subject::Tool), few);
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        let later = logged("flooding", Subject::Tool);
        assert_eq!(later.len(), MAX_WARNINGS as usize);
        assert_eq!(later[0], Some(20_000 - u64::from(MAX_WARNINGS)));
    }
}
