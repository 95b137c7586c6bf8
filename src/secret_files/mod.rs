//! Files that hold secrets: read as they change, locked beside themselves, and rewritten whole.

pub mod lock;
pub mod replacement;
mod source;

pub use source::source;
