//! Exposed names, and problems of the names that servers choose.

use std::fmt;
use std::sync::Arc;

use super::super::settings::{MAX_EXPOSED_NAME, ServerSettings};
use crate::raw_json::sha256_hex;

/// Hexadecimal digits of the full name's hash at the end of a cut name.
const HASH_DIGITS: usize = 8;

/// A problem of an entry that a server lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// An exposed name was too long.
    Cut {
        /// The server.
        server: Arc<str>,
        /// Its own name for the tool or prompt.
        name: Arc<str>,
        /// The name that the container sees.
        exposed: Arc<str>,
    },
    /// Two of them would have one exposed name: the second is left out.
    Collision {
        /// The name that the container sees.
        exposed: Arc<str>,
        /// The server and own name of the one that has it.
        kept: (Arc<str>, Arc<str>),
        /// The server and own name of the one that is left out.
        left_out: (Arc<str>, Arc<str>),
    },
    /// A name has characters that could make it look like another: it is left out.
    Name {
        /// The server.
        server: Arc<str>,
        /// Its own name for the tool or prompt.
        name: Arc<str>,
    },
    /// A definition that the operator changes cannot be rewritten: it is left out.
    Definition {
        /// The server.
        server: Arc<str>,
        /// Its own name for the tool.
        name: Arc<str>,
        /// Why.
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
                "{server}: {name:?} is exposed as {exposed}, for the whole name has more than {MAX_EXPOSED_NAME} characters"
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
                "{server}: {:?} is left out: a name has visible ASCII characters only",
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
    /// As it stands.
    Whole(Arc<str>),
    /// Too long.
    Cut(Arc<str>),
    /// It has characters that are not visible ASCII: it could look like another name.
    Refused,
}

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
