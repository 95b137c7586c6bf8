//! Exposed names, and problems with the names that servers choose.

use std::sync::Arc;

use super::super::settings::{MAX_EXPOSED_NAME, ServerSettings};
use crate::raw_json::sha256_hex;

/// Number of hexadecimal digits at the end of a cut name. They are the first digits of the hash of
/// the whole name.
const HASH_DIGITS: usize = 8;
/// Limit on the problems of one kind that are reported. Further problems are only counted, since a
/// server can cause thousands.
const MAX_PROBLEMS: usize = 100;

/// Problems of one kind: the texts of the first [`MAX_PROBLEMS`], and the number of the others.
#[derive(Default)]
pub(super) struct Problems {
    reported: Vec<String>,
    /// Number of problems that are not in `reported`.
    more: usize,
}

impl Problems {
    /// Adds a problem, or counts it if the list is full.
    pub(super) fn report(&mut self, problem: impl FnOnce() -> String) {
        if self.reported.len() < MAX_PROBLEMS {
            self.reported.push(problem());
        } else {
            self.more += 1;
        }
    }

    /// The problems. If some were only counted, the last line names their kind and number.
    pub(super) fn into_lines(mut self, kind: &str) -> Vec<String> {
        if self.more > 0 {
            let more = format!("{kind} that are not reported: {}", self.more);
            self.reported.push(more);
        }
        self.reported
    }
}

/// Returns the exposed name of a tool or prompt: the server's prefix followed by `name`, which is
/// the server's own name for the tool or prompt. An exposed name of more than [`MAX_EXPOSED_NAME`]
/// bytes is cut, and ends with a hash. `None` if `name` is empty or has characters other than
/// visible ASCII, with which it could look like another name. Reports a cut or refused name as a
/// problem.
pub(super) fn exposed_name(
    server: &ServerSettings,
    name: &str,
    problems: &mut Problems,
) -> Option<Arc<str>> {
    let ServerSettings {
        name: server,
        prefix,
        ..
    } = server;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        problems.report(|| {
            let name = name.escape_default();
            format!(
                "{server}: \"{name}\" is left out: a name must be one or more visible ASCII characters"
            )
        });
        return None;
    }
    let whole = format!("{prefix}{name}");
    if whole.len() <= MAX_EXPOSED_NAME {
        return Some(whole.into());
    }
    let hash = sha256_hex(&whole);
    let kept = MAX_EXPOSED_NAME - HASH_DIGITS - 1;
    let kept = whole.get(..kept).unwrap_or_default();
    let hash = hash.get(..HASH_DIGITS).unwrap_or_default();
    let exposed = format!("{kept}_{hash}");
    problems.report(|| {
        format!(
            "{server}: {name:?} is exposed as {exposed}, since the name with its prefix has more than {MAX_EXPOSED_NAME} characters"
        )
    });
    Some(exposed.into())
}

/// Reports that two entries have the same exposed name. `kept` and `left_out` are each a server and
/// the server's own name for the entry.
pub(super) fn report_collision(
    problems: &mut Problems,
    exposed: &str,
    kept: (&str, &str),
    left_out: (&str, &str),
) {
    problems.report(|| {
        format!(
            "{exposed:?} is the exposed name of {:?} of {} and of {:?} of {}: the second is left out; a tool can be renamed under overrides in mcp.yaml",
            kept.1, kept.0, left_out.1, left_out.0
        )
    });
}
