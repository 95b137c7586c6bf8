//! The chain of hashes through the audit log, and the names of its files.

use std::path::{Path, PathBuf};

use addons::observe::hex;
use aws_lc_rs::digest::{SHA256, digest};

/// What the first line of all points to.
pub const GENESIS: Digits = [b'0'; 64];

/// A SHA-256 in lower-case hexadecimal digits.
pub type Digits = [u8; 64];

/// The hash of a line, which the line after it carries.
pub fn hash(line: &[u8]) -> Digits {
    hex(digest(&SHA256, line).as_ref())
}

/// The name of a rotated log; 1 is the newest.
pub fn rotated(path: &Path, number: usize) -> PathBuf {
    suffixed(path, &format!(".{number}"))
}

/// A name beside the log.
pub fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
