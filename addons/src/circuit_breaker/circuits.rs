//! Circuits, and the rules that open and close them.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::contract::Endpoint;

/// Maximum number of circuits in one map (the shared map or a lease's). A wildcard entry matches an
/// unlimited number of hosts, so the map must be bounded. A circuit over the limit replaces the
/// circuit with the oldest `touched` among the closed ones, or among all if none is closed.
const MAX_CIRCUITS: usize = 1024;

/// How long a circuit is kept after `touched`.
const FORGET: Duration = Duration::from_secs(3600);

/// Retry delay for a flow that is denied because a probe is under way.
const WHILE_PROBING: Duration = Duration::from_secs(1);

/// When a circuit opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Number of consecutive faults that open a circuit.
    pub failures: NonZeroU32,
    /// How long a circuit stays open before a probe may pass.
    pub recovery: Duration,
    /// Number of successful flows that close a half-open circuit.
    pub successes: NonZeroU32,
}

/// The state of a circuit, in ascending order of severity. The discriminant is the value of the
/// metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Every flow passes.
    Closed,
    /// One request at a time passes, as a probe. Every tunnel passes.
    HalfOpen,
    /// No flow passes.
    Open,
}

/// The circuits of endpoints with recent faults. Faults are counted for each endpoint, so that a
/// client that connects to a closed port of a host, or uses TLS at a clear-text port, does not open
/// the circuit of the host's working endpoint.
///
/// An endpoint without faults has no circuit, so usually there is nothing to look up.
pub struct Circuits {
    circuits: Mutex<HashMap<Endpoint, Circuit>>,
    /// The number of circuits in all maps.
    circuit_count: Arc<AtomicUsize>,
    /// The number of the next probe.
    probes: AtomicUsize,
}

struct Circuit {
    upstream: Arc<str>,
    failures: u32,
    open: Option<Open>,
    /// The time of the last fault. A success that counts towards closing the circuit sets it to the
    /// beginning of its flow.
    touched: Instant,
}

struct Open {
    since: Instant,
    until: Instant,
    successes: u32,
    /// The number of the probe that is under way.
    probe: Option<usize>,
}

/// Held by the flow that is the probe of a half-open circuit. Dropping it lets the next probe pass.
pub struct Probe {
    circuits: Arc<Circuits>,
    endpoint: Endpoint,
    number: usize,
}

impl Drop for Probe {
    fn drop(&mut self) {
        let mut circuits = self.circuits.circuits.lock();
        let open = circuits
            .get_mut(&self.endpoint)
            .and_then(|circuit| circuit.open.as_mut());
        if let Some(open) = open
            && open.probe == Some(self.number)
        {
            open.probe = None;
        }
    }
}

impl Circuits {
    /// Makes an empty map, whose circuits are counted in `circuit_count`.
    pub fn new(circuit_count: Arc<AtomicUsize>) -> Self {
        Self {
            circuits: Mutex::default(),
            circuit_count,
            probes: AtomicUsize::new(0),
        }
    }

    /// Returns an error with the retry delay while the circuit is open. If the circuit is
    /// half-open, a flow with `may_probe` becomes the probe, or gets the error if there is a probe
    /// already. Other flows pass.
    pub fn admit(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        now: Instant,
        may_probe: bool,
    ) -> Result<Option<Probe>, Duration> {
        let mut circuits = self.circuits.lock();
        let circuit = circuits.get_mut(endpoint);
        let Some(open) = circuit.and_then(|circuit| circuit.open.as_mut()) else {
            return Ok(None);
        };
        if now < open.until {
            return Err(open.until.saturating_duration_since(now));
        }
        if !may_probe {
            return Ok(None);
        }
        if open.probe.is_some() {
            return Err(WHILE_PROBING);
        }
        let number = self.probes.fetch_add(1, Ordering::Relaxed);
        open.probe = Some(number);
        Ok(Some(Probe {
            circuits: Arc::clone(self),
            endpoint: endpoint.clone(),
            number,
        }))
    }

    /// Counts a success of a flow that began at `began`. Removes a closed circuit, which resets its
    /// count of faults. Removes a half-open circuit after enough successes. Flows that began before
    /// the circuit was half-open do not count towards closing it.
    pub fn success(&self, endpoint: &Endpoint, began: Instant, thresholds: Thresholds) {
        let mut circuits = self.circuits.lock();
        let Some(circuit) = circuits.get_mut(endpoint) else {
            return;
        };
        if let Some(open) = &mut circuit.open {
            if began < open.until {
                return;
            }
            open.successes += 1;
            circuit.touched = began;
            if open.successes < thresholds.successes.get() {
                return;
            }
        }
        circuits.remove(endpoint);
        self.circuit_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a fault of the upstream at `now`, in a flow that began at `began`. Flows that began
    /// before the circuit opened do not extend the time that it is open.
    pub fn failure(
        &self,
        endpoint: &Endpoint,
        upstream: &Arc<str>,
        (began, now): (Instant, Instant),
        thresholds: Thresholds,
    ) {
        let mut circuits = self.circuits.lock();
        if !circuits.contains_key(endpoint) {
            if circuits.len() >= MAX_CIRCUITS {
                self.forget_one(&mut circuits);
            }
            self.circuit_count.fetch_add(1, Ordering::Relaxed);
        }
        let circuit = circuits.entry(endpoint.clone()).or_insert_with(|| Circuit {
            upstream: Arc::clone(upstream),
            failures: 0,
            open: None,
            touched: now,
        });
        circuit.touched = now;
        circuit.failures = circuit.failures.saturating_add(1);
        let opens = match &circuit.open {
            None => circuit.failures >= thresholds.failures.get(),
            Some(open) => began >= open.since,
        };
        if opens {
            circuit.open = Some(Open {
                since: now,
                until: now + thresholds.recovery,
                successes: 0,
                probe: None,
            });
        }
    }

    fn forget_one(&self, circuits: &mut HashMap<Endpoint, Circuit>) {
        let oldest = circuits
            .iter()
            .min_by_key(|(_, circuit)| (circuit.open.is_some(), circuit.touched))
            .map(|(endpoint, _)| endpoint.clone());
        if let Some(endpoint) = oldest {
            circuits.remove(&endpoint);
            self.circuit_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes circuits that have counted no fault or success for an hour, except those that are
    /// open for longer.
    pub fn forget_idle(&self, now: Instant) {
        let mut circuits = self.circuits.lock();
        let before = circuits.len();
        circuits.retain(|_, circuit| {
            let is_open = circuit.open.as_ref().is_some_and(|open| now < open.until);
            is_open || now.saturating_duration_since(circuit.touched) < FORGET
        });
        self.circuit_count
            .fetch_sub(before - circuits.len(), Ordering::Relaxed);
    }

    /// The state of each circuit, with the label of its allowlist entry.
    pub fn states(&self, now: Instant) -> Vec<(Arc<str>, State)> {
        let circuits = self.circuits.lock();
        let state = |circuit: &Circuit| match &circuit.open {
            None => State::Closed,
            Some(open) if now < open.until => State::Open,
            Some(_) => State::HalfOpen,
        };
        circuits
            .values()
            .map(|circuit| (Arc::clone(&circuit.upstream), state(circuit)))
            .collect()
    }
}

impl Drop for Circuits {
    fn drop(&mut self) {
        let count = self.circuits.get_mut().len();
        self.circuit_count.fetch_sub(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Host, Scheme};

    const THRESHOLDS: Thresholds = Thresholds {
        failures: NonZeroU32::new(3).unwrap(),
        recovery: Duration::from_secs(30),
        successes: NonZeroU32::new(2).unwrap(),
    };

    struct Clock {
        circuits: Arc<Circuits>,
        began: Instant,
        circuit_count: Arc<AtomicUsize>,
    }

    fn clock() -> Clock {
        let circuit_count = Arc::<AtomicUsize>::default();
        Clock {
            circuits: Arc::new(Circuits::new(Arc::clone(&circuit_count))),
            began: Instant::now(),
            circuit_count,
        }
    }

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint {
            scheme: Scheme::Https,
            host: Host::parse(host).unwrap(),
            port,
        }
    }

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.began + Duration::from_secs(seconds)
        }

        fn fails(&self, seconds: u64) {
            let at = self.at(seconds);
            let endpoint = endpoint("api.example.com", 443);
            self.circuits
                .failure(&endpoint, &"api.example.com".into(), (at, at), THRESHOLDS);
        }

        fn succeeds(&self, seconds: u64) {
            let endpoint = endpoint("api.example.com", 443);
            self.circuits
                .success(&endpoint, self.at(seconds), THRESHOLDS);
        }

        fn admit(&self, seconds: u64) -> Result<Option<Probe>, Duration> {
            self.circuits
                .admit(&endpoint("api.example.com", 443), self.at(seconds), true)
        }

        fn state(&self, seconds: u64) -> Option<State> {
            let states = self.circuits.states(self.at(seconds));
            states.first().map(|(_, state)| *state)
        }
    }

    #[test]
    fn consecutive_faults_open_a_circuit_and_a_success_restarts_the_count() {
        let clock = clock();
        for second in 0..2 {
            clock.fails(second);
        }
        clock.succeeds(2);
        assert_eq!(clock.state(2), None);
        for second in 3..5 {
            clock.fails(second);
            assert!(clock.admit(second).is_ok());
        }
        clock.fails(5);
        assert_eq!(clock.state(5), Some(State::Open));
        assert_eq!(clock.admit(6).err(), Some(Duration::from_secs(29)));
    }

    #[test]
    fn a_circuit_that_stays_open_for_hours_is_not_forgotten_meanwhile() {
        let clock = clock();
        let thresholds = Thresholds {
            recovery: Duration::from_secs(3 * 3600),
            ..THRESHOLDS
        };
        let (endpoint, at) = (endpoint("api.example.com", 443), clock.at(0));
        for _ in 0..3 {
            let upstream = "api.example.com".into();
            let circuits = &clock.circuits;
            circuits.failure(&endpoint, &upstream, (at, at), thresholds);
        }
        clock.circuits.forget_idle(clock.at(2 * 3600));
        assert_eq!(clock.state(2 * 3600), Some(State::Open));
        clock.circuits.forget_idle(clock.at(4 * 3600));
        assert_eq!(clock.state(4 * 3600), None);
    }

    #[test]
    fn a_half_open_circuit_admits_one_probe_at_a_time_and_successes_close_it() {
        let clock = clock();
        (0..3).for_each(|_| clock.fails(0));
        let probe = clock.admit(30).unwrap();
        assert!(probe.is_some());
        assert_eq!(clock.state(30), Some(State::HalfOpen));
        assert_eq!(clock.admit(31).err(), Some(WHILE_PROBING));
        clock.succeeds(31);
        drop(probe);
        let probe = clock.admit(32).unwrap();
        assert!(probe.is_some(), "one success of two");
        clock.succeeds(32);
        drop(probe);
        assert_eq!(clock.state(33), None);
        assert!(clock.admit(33).unwrap().is_none());
    }

    #[test]
    fn a_failed_probe_opens_the_circuit_again_for_the_whole_recovery_time() {
        let clock = clock();
        (0..3).for_each(|_| clock.fails(0));
        let _probe = clock.admit(40).unwrap();
        clock.fails(40);
        assert_eq!(clock.admit(69).err(), Some(Duration::from_secs(1)));
        assert!(clock.admit(70).unwrap().is_some());
    }

    #[test]
    fn a_probe_that_ends_without_a_result_admits_the_next_one() {
        let clock = clock();
        (0..3).for_each(|_| clock.fails(0));
        for second in 30..35 {
            assert!(clock.admit(second).unwrap().is_some());
        }
        // Dropping a probe that began before the circuit reopened does not admit a second probe.
        let old = clock.admit(36).unwrap();
        clock.fails(36);
        let new = clock.admit(66).unwrap();
        drop(old);
        assert!(clock.admit(67).is_err());
        drop(new);
        assert!(clock.admit(67).is_ok());
    }

    #[test]
    fn flows_that_began_before_a_circuit_opened_do_not_change_it() {
        let clock = clock();
        (0..3).for_each(|_| clock.fails(10));
        let endpoint = endpoint("api.example.com", 443);
        for _ in 0..5 {
            clock.circuits.success(&endpoint, clock.at(9), THRESHOLDS);
        }
        let late = (clock.at(9), clock.at(35));
        let upstream = "api.example.com".into();
        clock
            .circuits
            .failure(&endpoint, &upstream, late, THRESHOLDS);
        assert_eq!(clock.state(39), Some(State::Open));
        assert_eq!(clock.state(40), Some(State::HalfOpen));
    }

    #[test]
    fn each_port_of_a_host_has_its_own_circuit() {
        let clock = clock();
        (0..3).for_each(|_| clock.fails(0));
        let other = endpoint("api.example.com", 8443);
        assert!(
            clock
                .circuits
                .admit(&other, clock.at(1), true)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_flood_of_names_takes_bounded_memory_and_open_circuits_stay_longest() {
        let clock = clock();
        (0..3).for_each(|_| clock.fails(0));
        let upstream: Arc<str> = "*.example.com".into();
        for n in 0..3 * MAX_CIRCUITS as u64 {
            let (endpoint, at) = (endpoint(&format!("n{n}.example.com"), 443), clock.at(n));
            clock
                .circuits
                .failure(&endpoint, &upstream, (at, at), THRESHOLDS);
        }
        assert_eq!(clock.circuits.circuits.lock().len(), MAX_CIRCUITS);
        assert_eq!(clock.circuit_count.load(Ordering::Relaxed), MAX_CIRCUITS);
        assert!(clock.admit(1).is_err());
        clock.circuits.forget_idle(clock.at(3 * 3600));
        assert_eq!(clock.circuit_count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_circuits_of_a_dropped_map_are_no_longer_counted() {
        let clock = clock();
        clock.fails(0);
        assert_eq!(clock.circuit_count.load(Ordering::Relaxed), 1);
        drop(clock.circuits);
        assert_eq!(clock.circuit_count.load(Ordering::Relaxed), 0);
    }
}
