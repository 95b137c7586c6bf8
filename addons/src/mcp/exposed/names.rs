//! Exposed names, and problems with the names that servers choose.

use std::fmt;
use std::sync::Arc;

use super::super::settings::{MAX_EXPOSED_NAME, ServerSettings};
use crate::raw_json::sha256_hex;

/// Number of hexadecimal digits of the full name's hash at the end of a cut name.
const HASH_DIGITS: usize = 8;
/// The most problems of one view that are reported; a server's list can have thousands.
const MAX_PROBLEMS: usize = 100;

/// A problem with an entry that a server lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// An exposed name was too long, and was cut.
    Cut {
        /// The server.
        server: Arc<str>,
        /// The server's own name for the tool or prompt.
        name: Arc<str>,
        /// The name that the container sees.
        exposed: Arc<str>,
    },
    /// Two entries would have the same exposed name: the second is left out.
    Collision {
        /// The name that the container sees.
        exposed: Arc<str>,
        /// The server and own name of the entry that keeps the name.
        kept: (Arc<str>, Arc<str>),
        /// The server and own name of the entry that is left out.
        left_out: (Arc<str>, Arc<str>),
    },
    /// A name has characters that could make it look like another one: its entry is left out.
    Name {
        /// The server.
        server: Arc<str>,
        /// The server's own name for the tool or prompt.
        name: Arc<str>,
    },
    /// A definition that an override changes cannot be rewritten: the tool is left out.
    Definition {
        /// The server.
        server: Arc<str>,
        /// The server's own name for the tool.
        name: Arc<str>,
        /// Why the definition cannot be rewritten.
        reason: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut {
                server,
                name,
                exposed,
            } => write!(
                f,
                "{server}: {name:?} is exposed as {exposed}, since the whole name has more than {MAX_EXPOSED_NAME} characters"
            ),
            Self::Collision {
                exposed,
                kept,
                left_out,
            } => write!(
                f,
                "{exposed:?} would name {:?} of {} and {:?} of {}: the latter is left out; rename one under overrides in mcp.yaml",
                kept.1, kept.0, left_out.1, left_out.0
            ),
            Self::Name { server, name } => write!(
                f,
                "{server}: {:?} is left out: its name has characters other than visible ASCII",
                name.escape_default().to_string()
            ),
            Self::Definition {
                server,
                name,
                reason,
            } => write!(f, "{server}: {name:?} is left out: {reason}"),
        }
    }
}

/// Returns the exposed name: the server's own name after the server's prefix, cut to
/// [`MAX_EXPOSED_NAME`] bytes. `None` for an empty name, and for one with characters other than
/// visible ASCII, which could look like another name. Reports a cut or refused name as a problem.
pub(super) fn exposed_name(
    server: &ServerSettings,
    name: &Arc<str>,
    problems: &mut Vec<Problem>,
) -> Option<Arc<str>> {
    let (server, name, prefix) = (Arc::clone(&server.name), Arc::clone(name), &server.prefix);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        report(problems, Problem::Name { server, name });
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
    let exposed: Arc<str> = format!("{kept}_{hash}").into();
    let problem = Problem::Cut {
        server,
        name,
        exposed: Arc::clone(&exposed),
    };
    report(problems, problem);
    Some(exposed)
}

/// Adds a problem, unless there are [`MAX_PROBLEMS`].
pub(super) fn report(problems: &mut Vec<Problem>, problem: Problem) {
    if problems.len() < MAX_PROBLEMS {
        problems.push(problem);
    }
}
