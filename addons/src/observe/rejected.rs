//! Counting what the rate limits turned away.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, Opts};

use crate::contract::{Container, ContainerId};

/// What the rate limits turned away. Its series bear a container's name, and go with the last of
/// its leases that was turned away.
#[derive(Clone)]
pub(super) struct Rejected {
    counters: IntCounterVec,
    leases: Arc<Mutex<HashMap<Labels, Vec<Weak<Container>>>>>,
}

/// A container and an upstream. One lease that follows another counts in the same series.
type Labels = (ContainerId, Box<str>);

impl Rejected {
    pub(super) fn new() -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_rate_limit_rejected_total",
            "Flows that were over a limit, by container and allowlist entry",
        );
        Ok(Self {
            counters: IntCounterVec::new(opts, &["container", "upstream"])?,
            leases: Arc::default(),
        })
    }

    pub(super) fn count(&self, container: &Arc<Container>, upstream: &str) {
        let mut leases = self.leases.lock();
        let labels = (container.id.clone(), upstream.into());
        let leases = leases.entry(labels).or_default();
        if !leases
            .iter()
            .any(|one| one.as_ptr() == Arc::as_ptr(container))
        {
            leases.retain(holds);
            leases.push(Arc::downgrade(container));
        }
        let labels = [container.id.as_str(), upstream];
        self.counters.with_label_values(&labels).inc();
    }

    fn forget_ended(&self) {
        self.leases.lock().retain(|(id, upstream), leases| {
            leases.retain(holds);
            if leases.is_empty() {
                let labels = [id.as_str(), upstream];
                let _ = self.counters.remove_label_values(&labels);
            }
            !leases.is_empty()
        });
    }
}

fn holds(lease: &Weak<Container>) -> bool {
    lease.upgrade().is_some_and(|lease| !lease.has_ended())
}

impl Collector for Rejected {
    fn desc(&self) -> Vec<&Desc> {
        self.counters.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.forget_ended();
        self.counters.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::container;

    /// What is collected, by container.
    fn collected(rejected: &Rejected) -> Vec<(String, u64)> {
        let families = rejected.collect();
        let series = families.iter().flat_map(MetricFamily::get_metric);
        let mut series: Vec<_> = series
            .map(|one| {
                let name = one.get_label()[0].value().to_owned();
                (name, one.get_counter().get_value() as u64)
            })
            .collect();
        series.sort();
        series
    }

    #[test]
    fn a_containers_series_go_when_its_lease_ends() {
        let rejected = Rejected::new().unwrap();
        let (ended, dropped, holding) = (container("web"), container("db"), container("job"));
        for container in [&ended, &dropped, &holding] {
            rejected.count(container, "api.example.com");
        }
        assert_eq!(collected(&rejected).len(), 3);
        ended.end();
        drop(dropped);
        assert_eq!(collected(&rejected), [("job".to_owned(), 1)]);
    }

    #[test]
    fn a_series_stays_while_any_lease_of_its_container_holds() {
        let rejected = Rejected::new().unwrap();
        let (before, after) = (container("web"), container("web"));
        rejected.count(&before, "api.example.com");
        before.end();
        rejected.count(&after, "api.example.com");
        // A flow of the lease that was replaced ends late.
        rejected.count(&before, "api.example.com");
        assert_eq!(collected(&rejected), [("web".to_owned(), 3)]);
        drop(before);
        rejected.count(&after, "api.example.com");
        assert_eq!(collected(&rejected), [("web".to_owned(), 4)]);
        after.end();
        assert_eq!(collected(&rejected), []);
        assert!(rejected.leases.lock().is_empty());
    }
}
