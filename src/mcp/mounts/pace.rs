//! Limits a rate.

use std::time::Duration;

use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// Limits the number of items in each second.
pub(super) struct Pace {
    /// The most items in a second.
    most: u32,
    began: Instant,
    /// Items since `began`.
    items: u32,
}

impl Pace {
    pub fn new(most: u32) -> Self {
        Self {
            most,
            began: Instant::now(),
            items: 0,
        }
    }

    /// Returns how long to wait before the next item; `None` if the item is within the limit.
    pub fn pause(&mut self) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        if elapsed >= SECOND {
            *self = Self::new(self.most);
        }
        (self.items >= self.most).then(|| SECOND.saturating_sub(elapsed))
    }

    /// Counts an item.
    pub fn count(&mut self) {
        self.items = self.items.saturating_add(1);
    }
}
