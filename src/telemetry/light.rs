//! Whether a part works, for health checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Goes down when what it stands for ends, however it ends.
#[derive(Clone, Default)]
pub struct Light(Arc<AtomicBool>);

impl Light {
    /// On until the returned guard is dropped.
    pub fn on(&self) -> Lit {
        self.0.store(true, Ordering::Relaxed);
        Lit(self.clone())
    }

    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keeps a light on.
pub struct Lit(Light);

impl Drop for Lit {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}
