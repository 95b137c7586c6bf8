//! The reason why the registry is unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The present problem, if any. Every flow checks whether there is one, so `is_there` takes no
/// lock; the text is read rarely.
pub(super) struct Problem {
    is_there: AtomicBool,
    why: Mutex<Option<Arc<String>>>,
}

impl Problem {
    pub(super) fn new(why: &str) -> Self {
        Self {
            is_there: AtomicBool::new(true),
            why: Mutex::new(Some(Arc::new(why.to_owned()))),
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    pub(super) fn get(&self) -> Option<Arc<String>> {
        self.why.lock().clone()
    }

    /// Sets or clears the problem. Returns the previous one.
    pub(super) fn replace(&self, why: Option<&str>) -> Option<Arc<String>> {
        let mut present = self.why.lock();
        self.is_there.store(why.is_some(), Ordering::Release);
        std::mem::replace(&mut *present, why.map(|why| Arc::new(why.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_can_be_cleared_and_set_again() {
        let problem = Problem::new("not read yet");
        assert!(problem.is_there());
        assert_eq!(**problem.replace(None).unwrap(), *"not read yet");
        assert!(!problem.is_there() && problem.get().is_none());
        assert!(problem.replace(Some("gone")).is_none());
        assert!(problem.is_there());
        assert_eq!(**problem.get().unwrap(), *"gone");
    }
}
