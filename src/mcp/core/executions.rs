//! The calls under way that people approved.

use std::collections::HashMap;
use std::sync::Arc;

use addons::contract::Executing;
use parking_lot::Mutex;

/// The calls under way of a lease that people approved, by the digests of their questions, with the
/// number of calls.
#[derive(Default)]
pub(super) struct Executions(Arc<Mutex<HashMap<Box<str>, usize>>>);

/// A call under way.
pub(super) struct Execution {
    all: Arc<Mutex<HashMap<Box<str>, usize>>>,
    digests: Vec<Box<str>>,
}

impl Executions {
    /// Registers a call until the result is dropped.
    pub fn begin(&self, executing: &Executing) -> Execution {
        let mut all = self.0.lock();
        for digest in &executing.0 {
            let count = all.entry(digest.clone()).or_default();
            *count = count.saturating_add(1);
        }
        Execution {
            all: Arc::clone(&self.0),
            digests: executing.0.clone(),
        }
    }

    /// All calls under way.
    pub fn all(&self) -> Executing {
        Executing(self.0.lock().keys().cloned().collect())
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        for digest in &self.digests {
            let left = all.get_mut(digest).map(|count| {
                *count = count.saturating_sub(1);
                *count
            });
            if left == Some(0) {
                all.remove(digest);
            }
        }
    }
}
