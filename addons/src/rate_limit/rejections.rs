//! The metric of flows that were over a limit.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, Opts, Registry};

use crate::contract::{Container, ContainerId};

/// Counts the flows that were denied with `rate_limited`, by container and upstream label (an
/// allowlist entry or an MCP server). A series is removed when the last of the container's leases
/// with such a flow has ended.
///
/// Created once and kept over reloads.
#[derive(Clone)]
pub struct Rejections {
    counters: IntCounterVec,
    leases: Arc<Mutex<HashMap<Labels, Vec<Weak<Container>>>>>,
}

/// A container and an upstream. All leases of a container share its series.
type Labels = (ContainerId, Box<str>);

impl Rejections {
    /// Registers `proxy_rate_limit_rejected_total`.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_rate_limit_rejected_total",
            "Flows denied with rate_limited, by container and by allowlist entry or MCP server",
        );
        let rejections = Self {
            counters: IntCounterVec::new(opts, &["container", "upstream"])?,
            leases: Arc::default(),
        };
        registry.register(Box::new(rejections.clone()))?;
        Ok(rejections)
    }

    pub(super) fn count(&self, container: &Arc<Container>, upstream: &str) {
        let mut leases = self.leases.lock();
        let labels = (container.id.clone(), upstream.into());
        let leases = leases.entry(labels).or_default();
        if !leases
            .iter()
            .any(|one| one.as_ptr() == Arc::as_ptr(container))
        {
            leases.retain(is_live);
            leases.push(Arc::downgrade(container));
        }
        let labels = [container.id.as_str(), upstream];
        self.counters.with_label_values(&labels).inc();
    }

    fn forget_ended(&self) {
        self.leases.lock().retain(|(id, upstream), leases| {
            leases.retain(is_live);
            if leases.is_empty() {
                let labels = [id.as_str(), upstream];
                let _ = self.counters.remove_label_values(&labels);
            }
            !leases.is_empty()
        });
    }
}

fn is_live(lease: &Weak<Container>) -> bool {
    lease.upgrade().is_some_and(|lease| !lease.has_ended())
}

impl Collector for Rejections {
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

    /// The container and the count of each collected series.
    fn collected(rejections: &Rejections) -> Vec<(String, u64)> {
        let families = rejections.collect();
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
    fn the_series_of_a_container_is_removed_when_its_lease_ends() {
        let rejections = Rejections::new(&Registry::new()).unwrap();
        let (ended, dropped, live) = (container("web"), container("db"), container("job"));
        for container in [&ended, &dropped, &live] {
            rejections.count(container, "api.example.com");
        }
        assert_eq!(collected(&rejections).len(), 3);
        ended.end();
        drop(dropped);
        assert_eq!(collected(&rejections), [("job".to_owned(), 1)]);
    }

    #[test]
    fn a_series_stays_while_any_lease_of_its_container_is_live() {
        let rejections = Rejections::new(&Registry::new()).unwrap();
        let (before, after) = (container("web"), container("web"));
        rejections.count(&before, "api.example.com");
        before.end();
        rejections.count(&after, "api.example.com");
        // A late flow of the replaced lease.
        rejections.count(&before, "api.example.com");
        assert_eq!(collected(&rejections), [("web".to_owned(), 3)]);
        drop(before);
        rejections.count(&after, "api.example.com");
        assert_eq!(collected(&rejections), [("web".to_owned(), 4)]);
        after.end();
        assert_eq!(collected(&rejections), []);
        assert!(rejections.leases.lock().is_empty());
    }
}
