//! Exposed names, and problems with the names that servers choose.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::settings::{MAX_EXPOSED_NAME, ServerSettings};
use crate::json::sha256_hex;

/// Number of hexadecimal digits at the end of a changed name. They are the first digits of the hash of
/// the whole name.
const HASH_DIGITS: usize = 8;
/// Limit on the problems of one kind with one server that are reported. Further problems are only
/// counted, since a server can cause thousands.
const MAX_PROBLEMS: usize = 100;
/// The longest part of a name that a problem quotes, in bytes.
const MAX_QUOTED: usize = 128;

/// A problem with an entry of a server's list, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The server that caused it.
    pub server: Arc<str>,
    /// The problem in one sentence.
    pub text: String,
}

/// Problems of one kind, by server: the texts of the first [`MAX_PROBLEMS`], and the number of the
/// others.
#[derive(Default)]
pub(super) struct Problems(BTreeMap<Arc<str>, (Vec<String>, usize)>);

impl Problems {
    /// Adds a problem, or counts it if the list of the server is full.
    pub(super) fn report(&mut self, server: &Arc<str>, problem: impl FnOnce() -> String) {
        let (reported, more) = self.0.entry(Arc::clone(server)).or_default();
        if reported.len() < MAX_PROBLEMS {
            reported.push(problem());
        } else {
            *more += 1;
        }
    }

    /// The problems. If some of a server were only counted, its last line names their kind and
    /// number.
    pub(super) fn into_lines(self, kind: &str) -> Vec<Problem> {
        let all = self
            .0
            .into_iter()
            .flat_map(|(server, (mut reported, more))| {
                if more > 0 {
                    reported.push(format!("{server}: {kind} that are not reported: {more}"));
                }
                let problem = move |text| Problem {
                    server: Arc::clone(&server),
                    text,
                };
                reported.into_iter().map(problem)
            });
        all.collect()
    }
}

/// Quotes a name, or its beginning if it is long. Characters other than visible ASCII are escaped.
fn quoted(name: &str) -> String {
    let end = name.floor_char_boundary(MAX_QUOTED);
    let more = if end < name.len() { "…" } else { "" };
    format!(
        "\"{}\"{more}",
        name.get(..end).unwrap_or_default().escape_default()
    )
}

/// Which of several tools with one exposed name is kept: one of the first kind that there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedence {
    /// The operator chose the name.
    Renamed,
    /// It is the server's own name with the prefix.
    Whole,
    /// It is cut, or characters are replaced.
    Changed,
}

/// The exposed name of a tool. APIs of models accept only letters, digits, `_` and `-` in it.
pub(super) fn exposed_tool_name(
    server: &ServerSettings,
    name: &str,
    problems: &mut Problems,
) -> Option<(Arc<str>, Precedence)> {
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    exposed_name(server, name, is_accepted, problems)
}

/// The exposed name of a prompt, which is not sent to APIs of models.
pub(super) fn exposed_prompt_name(
    server: &ServerSettings,
    name: &str,
    problems: &mut Problems,
) -> Option<Arc<str>> {
    let (exposed, _) = exposed_name(server, name, |_| true, problems)?;
    Some(exposed)
}

/// Returns the exposed name of a tool or prompt: the server's prefix followed by `name`, which is
/// the server's own name for the tool or prompt. If that has more than [`MAX_EXPOSED_NAME`] bytes, it
/// is cut; `_` replaces characters that are not accepted. A changed name ends with the hash of the
/// whole name, so that the name of one tool never becomes that of another one. `None` if `name` is
/// empty or has characters other than visible ASCII, with which it could look like another name.
/// Reports a changed or refused name as a problem.
fn exposed_name(
    server: &ServerSettings,
    name: &str,
    is_accepted: fn(char) -> bool,
    problems: &mut Problems,
) -> Option<(Arc<str>, Precedence)> {
    let ServerSettings {
        name: server,
        prefix,
        ..
    } = server;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        problems.report(server, || {
            let name = quoted(name);
            format!(
                "{server}: {name} is left out: a name must be one or more visible ASCII characters"
            )
        });
        return None;
    }
    let whole = format!("{prefix}{name}");
    let reason = if whole.len() > MAX_EXPOSED_NAME {
        "is longer"
    } else if !whole.chars().all(is_accepted) {
        "has other characters"
    } else {
        return Some((whole.into(), Precedence::Whole));
    };
    let kept = MAX_EXPOSED_NAME - HASH_DIGITS - 1;
    let accepted = whole.replace(|c| !is_accepted(c), "_");
    let text = format!("{accepted:.kept$}_{:.HASH_DIGITS$}", sha256_hex(&whole));
    problems.report(server, || {
        let name = quoted(name);
        format!(
            "{server}: {name} is exposed as {text}, since an exposed name has at most \
             {MAX_EXPOSED_NAME} letters, digits, _ and -, and the name with its prefix {reason}"
        )
    });
    Some((text.into(), Precedence::Changed))
}

/// Reports that two entries have the same exposed name. `kept` and `left_out` are each a server and
/// the server's own name for the entry.
pub(super) fn report_collision(
    problems: &mut Problems,
    exposed: &str,
    kept: (&Arc<str>, &str),
    left_out: (&Arc<str>, &str),
) {
    problems.report(left_out.0, || {
        format!(
            "{exposed:?} is the exposed name of {} of {} and of {} of {}: the second is left out; a tool can be renamed under overrides in mcp.yaml",
            quoted(kept.1),
            kept.0,
            quoted(left_out.1),
            left_out.0
        )
    });
}
