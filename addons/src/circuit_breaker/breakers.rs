//! All circuits: the shared ones and those of each lease.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

use super::circuits::{Circuits, State};
use crate::contract::Container;

/// All circuits. Created once and kept over reloads.
#[derive(Clone)]
pub struct Breakers {
    /// The circuits of all containers together, for faults of connecting.
    pub(super) shared: Arc<Circuits>,
    leases: Arc<Mutex<Vec<LeaseCircuits>>>,
    /// The number of circuits in all maps: the shared map and those of the leases.
    circuit_count: Arc<AtomicUsize>,
    /// The labels of the current allowlist's entries.
    upstreams: Arc<Mutex<Vec<Arc<str>>>>,
    state: IntGaugeVec,
    failures: IntCounterVec,
}

/// The circuits that a lease owns, and the token that is cancelled when the lease ends.
type LeaseCircuits = (Weak<Circuits>, CancellationToken);

impl Breakers {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let state = Opts::new(
            "proxy_circuit_breaker_state",
            "Worst state of the circuits of an allowlist entry: 0 closed, 1 half-open, 2 open",
        );
        let failures = Opts::new(
            "proxy_circuit_breaker_failures_total",
            "Faults of upstreams, by allowlist entry",
        );
        let circuit_count = Arc::<AtomicUsize>::default();
        let breakers = Self {
            shared: Arc::new(Circuits::new(Arc::clone(&circuit_count))),
            leases: Arc::default(),
            circuit_count,
            upstreams: Arc::default(),
            state: IntGaugeVec::new(state, &["upstream"])?,
            failures: IntCounterVec::new(failures, &["upstream"])?,
        };
        registry.register(Box::new(breakers.clone()))?;
        Ok(breakers)
    }

    /// Sets the labels of the allowlist's entries, so that the metrics also have a series for
    /// entries without a fault.
    pub fn name_upstreams(&self, upstreams: impl Iterator<Item = Arc<str>>) {
        let upstreams: Vec<_> = upstreams.collect();
        for upstream in &upstreams {
            self.failures.with_label_values(&[&**upstream]);
        }
        *self.upstreams.lock() = upstreams;
    }

    /// Whether every circuit of the allowlist's entries is closed.
    pub fn all_closed(&self) -> bool {
        let states = self.states_of(&self.upstreams.lock());
        states.values().all(|state| *state == State::Closed)
    }

    /// Removes circuits that have counted no fault or success for an hour.
    pub fn forget_idle(&self, now: Instant) {
        for circuits in self.all() {
            circuits.forget_idle(now);
        }
    }

    /// Whether there is any circuit to look up.
    pub(super) fn has_circuits(&self) -> bool {
        self.circuit_count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn count_failure(&self, upstream: &str) {
        self.failures.with_label_values(&[upstream]).inc();
    }

    /// The circuits of one container, for faulty responses. The container's lease owns them.
    pub(super) fn of<'c>(&self, container: &'c Container) -> &'c Arc<Circuits> {
        container.state_or_init(|| {
            let circuits = Arc::new(Circuits::new(Arc::clone(&self.circuit_count)));
            let lease = (Arc::downgrade(&circuits), container.ended().clone());
            self.leases.lock().push(lease);
            circuits
        })
    }

    /// Returns the shared circuits and those of leases that have not ended. Removes ended leases
    /// from the list.
    fn all(&self) -> Vec<Arc<Circuits>> {
        let mut all = vec![Arc::clone(&self.shared)];
        self.leases.lock().retain(|(circuits, ended)| {
            let live = circuits.upgrade().filter(|_| !ended.is_cancelled());
            all.extend(live.clone());
            live.is_some()
        });
        all
    }

    /// The worst state of the circuits of each allowlist entry.
    fn states_of(&self, upstreams: &[Arc<str>]) -> BTreeMap<Arc<str>, State> {
        let closed = upstreams
            .iter()
            .map(|name| (Arc::clone(name), State::Closed));
        let mut worst: BTreeMap<_, _> = closed.collect();
        let now = Instant::now();
        for (upstream, state) in self.all().iter().flat_map(|circuits| circuits.states(now)) {
            // An entry that a reload removed is not reported.
            if let Some(known) = worst.get_mut(&upstream) {
                *known = state.max(*known);
            }
        }
        worst
    }
}

impl Collector for Breakers {
    fn desc(&self) -> Vec<&Desc> {
        [self.state.desc(), self.failures.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Locked to the end, so that no other scrape finds the series reset.
        let upstreams = self.upstreams.lock();
        let states = self.states_of(&upstreams);
        self.state.reset();
        for (upstream, state) in states {
            self.state
                .with_label_values(&[&*upstream])
                .set(state as i64);
        }
        [self.state.collect(), self.failures.collect()].concat()
    }
}
