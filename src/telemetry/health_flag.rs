//! A flag for health checks: whether a part of the appliance works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set while a part of the appliance works. Cleared when its guard is dropped, also on panic.
#[derive(Clone, Default)]
pub struct HealthFlag(Arc<AtomicBool>);

impl HealthFlag {
    /// Sets the flag until the returned guard is dropped.
    pub fn on(&self) -> HealthGuard {
        self.0.store(true, Ordering::Relaxed);
        HealthGuard(self.clone())
    }

    /// Whether the part works.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub struct HealthGuard(HealthFlag);

impl Drop for HealthGuard {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}
