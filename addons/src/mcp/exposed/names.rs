//! Exposed names, and problems with the names that servers choose.

use std::fmt;
use std::sync::Arc;

use super::super::settings::{MAX_EXPOSED_NAME, ServerSettings};
use crate::raw_json::sha256_hex;

/// Number of hexadecimal digits of the full name's hash at the end of a cut name.
const HASH_DIGITS: usize = 8;

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

/// A server's own name with its prefix.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The whole name.
    Whole(Arc<str>),
    /// The name was too long, and is cut.
    Cut(Arc<str>),
    /// The name has characters other than visible ASCII, so it could look like another name.
    Refused,
}

/// Adds the server's prefix to a name, and cuts the result to [`MAX_EXPOSED_NAME`] bytes. Refuses
/// an empty name and one with characters other than visible ASCII.
pub(super) fn exposed_name(server: &ServerSettings, name: &str) -> Named {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Named::Refused;
    }
    let whole = format!("{}{name}", server.prefix);
    if whole.len() <= MAX_EXPOSED_NAME {
        return Named::Whole(whole.into());
    }
    let hash = sha256_hex(&whole);
    let kept = MAX_EXPOSED_NAME - HASH_DIGITS - 1;
    let kept = whole.get(..kept).unwrap_or_default();
    let hash = hash.get(..HASH_DIGITS).unwrap_or_default();
    Named::Cut(format!("{kept}_{hash}").into())
}
