//! The operations on folder trees: find and grep.

mod find;
mod grep;

pub use find::{FindRequest, FindResult, find};
pub use grep::{GrepDetails, GrepRequest, GrepResult, grep};
