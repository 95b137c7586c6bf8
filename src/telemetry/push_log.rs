//! A word in the log about large pushes.

use addons::contract::Container;
use addons::git::PushWatch;

/// Warns of them.
pub struct PushLog;

impl PushWatch for PushLog {
    fn large(&self, container: &Container, repo: &str, bytes: u64) {
        tracing::warn!(container = %container.id, repo, bytes, "a large push passed");
    }
}
