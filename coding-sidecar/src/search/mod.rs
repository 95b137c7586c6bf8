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

use crate::failure::printable;

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
