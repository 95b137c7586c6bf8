//! The globs of `find` and `grep`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::{GlobBuilder, GlobMatcher};

use crate::failure::Failure;

/// The most bytes of a glob. Bounds the time and memory that compiling it takes.
const GLOB_BYTES_MAX: usize = 1_000;

/// A glob. It is matched against names or, if it contains a `/`, against paths relative to the
/// searched folder.
#[derive(Debug)]
pub(super) struct Filter {
    glob: GlobMatcher,
    by_path: bool,
    negated: bool,
}

impl Filter {
    /// Compiles a glob. `field` is the name of its field in the request, for errors.
    pub(super) fn new(pattern: &str, field: &str) -> Result<Self, Failure> {
        if pattern.is_empty() {
            return Err(Failure::Request(format!("{field} is empty")));
        }
        if pattern.len() > GLOB_BYTES_MAX {
            return Err(Failure::Request(format!(
                "{field} is {} bytes long, the limit is {GLOB_BYTES_MAX}",
                pattern.len()
            )));
        }
        let relative = pattern.strip_prefix("./").unwrap_or(pattern);
        let relative = relative.strip_prefix('/').unwrap_or(relative);
        let glob = GlobBuilder::new(relative)
            .literal_separator(true)
            .backslash_escape(true)
            .empty_alternates(true)
            .build()
            .map_err(|error| Failure::Request(format!("{field}: {error}")))?;
        Ok(Self {
            glob: glob.compile_matcher(),
            by_path: pattern.contains('/'),
            negated: false,
        })
    }

    /// Like [`Filter::new`], but a `!` at the start of the pattern negates it.
    pub(super) fn new_negatable(pattern: &str, field: &str) -> Result<Self, Failure> {
        match pattern.strip_prefix('!') {
            Some(rest) => Ok(Self {
                negated: true,
                ..Self::new(rest, field)?
            }),
            None => Self::new(pattern, field),
        }
    }

    /// Whether the glob accepts an entry. `path` is relative to the searched folder or, if a
    /// request names a single file, to the root.
    pub(super) fn accepts(&self, path: &[u8]) -> bool {
        let matched = if self.by_path {
            path
        } else {
            path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
        };
        self.glob.is_match(OsStr::from_bytes(matched)) != self.negated
    }
}
