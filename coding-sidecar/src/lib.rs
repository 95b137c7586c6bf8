//! Commands and file operations below one folder, for a caller on a Unix socket or TCP.
#![deny(missing_docs)]

pub mod failure;
pub mod files;
pub mod search;
pub mod truncation;
pub mod work;
pub mod workspace;
