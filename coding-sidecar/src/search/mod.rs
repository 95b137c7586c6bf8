//! The operations on folder trees: `find` and `grep`.

mod filter;
mod find;
mod gather;
mod grep;
mod lines;
mod rules;
mod walk;

pub use find::{FindRequest, FindResult, find};
pub use grep::{GrepDetails, GrepRequest, GrepResult, grep};

use crate::failure::{Failure, printable};
use crate::truncation::OUTPUT_LINES_MAX;

/// The files and folders that a search left out, completely or in part: their number and the first
/// one.
#[derive(Debug, Default)]
struct Skipped {
    count: u64,
    first: Option<String>,
}

impl Skipped {
    fn add(&mut self, path: &str, reason: impl std::fmt::Display) {
        self.count = self.count.saturating_add(1);
        self.first
            .get_or_insert_with(|| format!("{}: {reason}", printable(path)));
    }

    fn merge(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        if self.first.is_none() {
            self.first = other.first;
        }
    }

    fn describe(self) -> Option<String> {
        let first = self.first?;
        Some(match self.count {
            1 => format!("not searched: {first}"),
            count => format!("{count} not searched, the first: {first}"),
        })
    }
}

/// Returns the request's limit, or `default` if it has none, but at most [`OUTPUT_LINES_MAX`].
/// Fails if the request's limit is 0.
fn limit(requested: Option<u64>, default: u64) -> Result<usize, Failure> {
    match requested {
        Some(0) => Err(Failure::Request("limit must be at least 1".into())),
        limit => Ok(usize::try_from(limit.unwrap_or(default))
            .unwrap_or(usize::MAX)
            .min(OUTPUT_LINES_MAX)),
    }
}
