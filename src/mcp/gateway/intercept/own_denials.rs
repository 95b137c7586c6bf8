//! The texts of the latest blocks of a lease.

use std::collections::VecDeque;

use addons::json::sha256_hex;
use parking_lot::Mutex;

/// The most texts that are remembered.
const MAX: usize = 256;

/// Digests of the reasons with which a lease's questions were blocked lately. A gateway passes a
/// block on to `after` as the result of its call. Any server can write a result that looks like a
/// block, so only one with a text of ours is ours.
#[derive(Default)]
pub struct OwnDenials(Mutex<VecDeque<String>>);

impl OwnDenials {
    pub fn add(&self, reason: &str) {
        let digest = sha256_hex(reason);
        let mut latest = self.0.lock();
        if latest.contains(&digest) {
            return;
        }
        if latest.len() >= MAX {
            latest.pop_front();
        }
        latest.push_back(digest);
    }

    pub fn has(&self, reason: &str) -> bool {
        self.0.lock().contains(&sha256_hex(reason))
    }
}
