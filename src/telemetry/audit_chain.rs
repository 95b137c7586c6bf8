//! The hash chain of the audit log, and the names of its files.

use std::path::{Path, PathBuf};

use addons::observe::hex;
use aws_lc_rs::digest::{SHA256, digest};

/// The `prev` of the first line. In later lines, `prev` is the hash of the previous line.
pub const GENESIS: Digits = [b'0'; 64];

/// A SHA-256 in lower-case hexadecimal digits.
pub type Digits = [u8; 64];

/// The hash of a line, without the line feed. It is the `prev` of the next line.
pub fn hash(line: &[u8]) -> Digits {
    hex(digest(&SHA256, line).as_ref())
}

/// The path of a rotated log; number 1 is the newest.
pub fn rotated(path: &Path, number: usize) -> PathBuf {
    path.with_added_extension(number.to_string())
}
