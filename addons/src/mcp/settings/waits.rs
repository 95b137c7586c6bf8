//! `approvals.wait` and `approvals.wait_by_client` in `proxy.yaml`.

use std::collections::HashMap;
use std::time::Duration;

use crate::contract::settings::{Files, Setting};

/// How long a call waits for a person if nothing else is said. Most clients give up after 60 s.
const WAIT: Duration = Duration::from_secs(45);

/// Limit on each wait.
const MAX_WAIT: Duration = Duration::from_secs(15 * 60);

/// Clients that wait longer if they get progress, by the name in their `clientInfo`.
const BY_CLIENT: [(&str, u64); 4] = [
    ("claude-code", 10),
    ("opencode", 10),
    ("gemini-cli-mcp-client", 9),
    ("codex-mcp-client", 4),
];

/// How long the calls of clients wait for a person's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonWaits {
    wait: Duration,
    by_client: HashMap<Box<str>, Duration>,
}

impl Default for PersonWaits {
    fn default() -> Self {
        let minutes = |(name, minutes): (&str, u64)| {
            let wait = Duration::from_secs(minutes.saturating_mul(60));
            (Box::from(name), wait)
        };
        Self {
            wait: WAIT,
            by_client: BY_CLIENT.into_iter().map(minutes).collect(),
        }
    }
}

impl PersonWaits {
    /// Reads the settings. Entries of the file are added to the shipped ones.
    pub(super) fn read(files: &Files<'_>) -> Self {
        let approvals = files.proxy.fields().section("approvals");
        let mut waits = Self::default();
        waits.wait = approvals.or("wait", waits.wait, wait);
        let named = approvals.find("wait_by_client");
        for (name, at) in named.and_then(|at| at.entries()).into_iter().flatten() {
            if let Some(wait) = wait(at) {
                waits.by_client.insert(name.name.as_str().into(), wait);
            }
        }
        waits
    }

    /// How long a call waits. `client` is the client's name; `None` also for a call without a
    /// progress token, whose client does not learn that the call goes on.
    #[must_use]
    pub fn of(&self, client: Option<&str>) -> Duration {
        let known = client.and_then(|name| self.by_client.get(name));
        known.copied().unwrap_or(self.wait)
    }
}

fn wait(at: Setting<'_>) -> Option<Duration> {
    if at.any_text() == Some("0s") {
        return Some(Duration::ZERO);
    }
    let wait = at.duration()?;
    if wait > MAX_WAIT {
        at.refuse("must be at most 15m");
    }
    Some(wait)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::fixtures::read_files;

    #[test]
    fn a_client_waits_as_long_as_the_table_says_and_others_the_default() {
        let seconds = Duration::from_secs;
        each_row(
            [
                ("{}", None, 45),
                ("{}", Some("claude-code"), 600),
                ("{}", Some("opencode"), 600),
                ("{}", Some("gemini-cli-mcp-client"), 540),
                ("{}", Some("codex-mcp-client"), 240),
                ("{}", Some("another"), 45),
                ("{ wait: 10s }", Some("another"), 10),
                ("{ wait: 0s }", None, 0),
                ("{ wait: 10s }", Some("claude-code"), 600),
                ("{ wait_by_client: { another: 2m } }", Some("another"), 120),
                (
                    "{ wait_by_client: { claude-code: 1m } }",
                    Some("claude-code"),
                    60,
                ),
                (
                    "{ wait_by_client: { claude-code: 1m } }",
                    Some("opencode"),
                    600,
                ),
            ],
            |(approvals, client, expected)| {
                let text = format!("version: 1\napprovals: {approvals}\n");
                let waits = read_files(&[("proxy.yaml", &text)], PersonWaits::read).unwrap();
                assert_eq!(waits.of(client), seconds(expected));
            },
        );
        each_row(
            [
                "{ wait: 16m }",
                "{ wait: soon }",
                "{ wait_by_client: { a: 1h } }",
            ],
            |approvals| {
                let text = format!("version: 1\napprovals: {approvals}\n");
                assert!(read_files(&[("proxy.yaml", &text)], PersonWaits::read).is_err());
            },
        );
    }
}
