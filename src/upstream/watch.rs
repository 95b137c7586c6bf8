//! Reports whether the nameservers answer, in a metric, a health check and log lines.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use prometheus::{IntCounter, Registry};

use crate::runtime::LogThrottle;

/// Records the outcome of each question to the nameservers. One instance is kept over reloads.
pub struct NameserverWatch {
    failures: IntCounter,
    /// Whether the latest question failed. Read with each answer, so it is outside the lock.
    failing: AtomicBool,
    outage: Mutex<Outage>,
}

/// The state of the log lines about failures.
#[derive(Default)]
struct Outage {
    lines: LogThrottle,
    /// Whether the last log line said that the nameservers fail.
    announced: bool,
}

impl Outage {
    /// Counts a failure. Returns the number of failures to log, if a log line is due.
    fn failed(&mut self) -> Option<u64> {
        let count = self.lines.count()?;
        self.announced = true;
        Some(count)
    }

    /// Whether a log line about the end of the failures is due.
    fn ended(&mut self) -> bool {
        std::mem::take(&mut self.announced)
    }
}

impl NameserverWatch {
    /// Registers `proxy_upstream_dns_failures_total`.
    pub fn new(metrics: &Registry) -> prometheus::Result<Self> {
        let failures = IntCounter::new(
            "proxy_upstream_dns_failures_total",
            "Questions that the nameservers did not answer, or answered with a failure.",
        )?;
        metrics.register(Box::new(failures.clone()))?;
        Ok(Self {
            failures,
            failing: AtomicBool::new(false),
            outage: Mutex::default(),
        })
    }

    /// Whether the latest question was answered; true before the first.
    pub fn is_well(&self) -> bool {
        !self.failing.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self) {
        let was_failing = self.failing.load(Ordering::Relaxed);
        if was_failing && self.failing.swap(false, Ordering::Relaxed) && self.outage.lock().ended()
        {
            tracing::info!("the nameservers answer again");
        }
    }

    /// Notes that a question failed at all nameservers; `why` is the sentence of its denial.
    pub(super) fn failed(&self, why: &str) {
        self.failures.inc();
        self.failing.store(true, Ordering::Relaxed);
        if let Some(count) = self.outage.lock().failed() {
            tracing::warn!(
                count,
                newest = why,
                "names cannot be looked up: check upstream.nameservers in proxy.yaml or, if it is empty, the system's resolv.conf"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_is_logged_once_and_only_after_a_line_about_failures() {
        let mut outage = Outage::default();
        assert!(!outage.ended());
        outage.failed();
        assert!(outage.ended());
        assert!(!outage.ended());
        // A nameserver that fails and recovers again within the minute adds no lines.
        assert_eq!(outage.failed(), None);
        assert!(!outage.ended());
    }
}
