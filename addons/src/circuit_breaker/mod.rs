//! Circuit breakers: the addon that denies flows to an upstream for a while after consecutive
//! faults.
//!
//! Only faults of the upstream count, not the denials of addons. Faults of connecting do not depend
//! on the container, so they are counted for all containers together. Faulty responses depend on
//! the request, so they are counted for each container separately.
//!
//! A host without an allowlist entry has no circuit, so this addon neither denies nor counts its
//! flows. Only the appliance's own requests and requests of MCP mounts reach such a host, for
//! example the token endpoint of a login.

mod breakers;
mod circuits;
mod settings;

use std::time::{Duration, Instant};

use crate::contract::{
    Addon, Code, Denial, Flow, Kind, Lookup, Order, Outcome, Request, Response, Stage, Step,
    Verdict, names,
};
use circuits::Probe;

pub use breakers::Breakers;
pub use circuits::Thresholds;
pub use settings::CircuitBreakerSettings;

/// Denies flows to upstreams whose circuit is open.
pub struct CircuitBreaker {
    settings: CircuitBreakerSettings,
    breakers: Breakers,
}

/// The probes of half-open circuits that a flow holds.
struct Probes {
    _held: Vec<Probe>,
}

/// Marks a flow whose fault another flow reports. If several flows waited for one connection that
/// failed, the failure counts once. The engine puts the mark into the flow's slots.
pub struct SharedFault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultScope {
    /// A fault of connecting to the host: counts for all containers.
    Host,
    /// A fault of the host's responses: counts for one container.
    Responses,
}

impl CircuitBreaker {
    /// Builds the addon. `breakers` has the circuits, which are kept over reloads.
    #[must_use]
    pub fn new(settings: CircuitBreakerSettings, breakers: Breakers) -> Self {
        Self { settings, breakers }
    }

    fn thresholds(&self, flow: &Flow) -> Thresholds {
        let own = self.settings.upstreams.find(flow.host());
        own.copied().unwrap_or(self.settings.defaults)
    }

    /// Admits a flow, or denies it with the time to wait. A tunnel does not become a probe, since
    /// it may last for hours, and neither does a dry run.
    fn admit(&self, flow: &mut Flow) -> Verdict {
        let breakers = &self.breakers;
        // A look-up is part of a request that was admitted before, and that holds the probe if the
        // circuit is half-open.
        let part_of_another = flow.find_slot::<Lookup>().is_some();
        if flow.entry.is_none() || !breakers.has_circuits() || part_of_another {
            return Ok(());
        }
        let Some(endpoint) = flow.endpoint() else {
            return Ok(());
        };
        let may_probe = flow.kind != Kind::Tunnel && !flow.is_dry_run();
        let mut held = Vec::new();
        let lease = flow.known_container().map(|one| breakers.of(one));
        for circuits in [Some(&breakers.shared), lease].into_iter().flatten() {
            let admitted = circuits.admit(endpoint, flow.started, may_probe);
            held.extend(admitted.map_err(|wait| circuit_open(flow, wait))?);
        }
        if !held.is_empty() {
            flow.put_slot(Probes { _held: held });
        }
        Ok(())
    }

    /// Counts a response as a success of connecting. Also counts it as a faulty response (status
    /// 500 and above) or as a successful one.
    fn count_response(&self, flow: &mut Flow, status: u16) {
        let breakers = &self.breakers;
        let fails = status >= 500;
        if !fails && !breakers.has_circuits() {
            return;
        }
        let Some(endpoint) = flow.endpoint() else {
            return;
        };
        let thresholds = self.thresholds(flow);
        breakers.shared.success(endpoint, flow.started, thresholds);
        if fails {
            // Not `Instant::now()`, since tests set `started` to a future time, and the fault must
            // not be earlier than `started`.
            let now = flow.started + flow.started.elapsed();
            self.count_fault(flow, FaultScope::Responses, now);
        } else if let Some(container) = flow.known_container() {
            let circuits = breakers.of(container);
            circuits.success(endpoint, flow.started, thresholds);
        }
        // The next probe need not wait for the body, which may stream for hours.
        flow.take_slot::<Probes>();
    }

    fn count_fault(&self, flow: &Flow, scope: FaultScope, now: Instant) {
        let (Some(entry), Some(endpoint)) = (&flow.entry, flow.endpoint()) else {
            return;
        };
        let breakers = &self.breakers;
        let circuits = match (scope, flow.known_container()) {
            (FaultScope::Host, _) => &breakers.shared,
            (FaultScope::Responses, Some(container)) => breakers.of(container),
            (FaultScope::Responses, None) => return,
        };
        let thresholds = self.thresholds(flow);
        let times = (flow.started, now);
        circuits.failure(endpoint, &entry.label, times, thresholds);
        breakers.count_failure(&entry.label);
    }
}

impl Addon for CircuitBreaker {
    fn name(&self) -> &'static str {
        names::CIRCUIT_BREAKER
    }

    fn order(&self) -> Order {
        Order {
            after: &[names::IDENTITY],
            before: &[names::CREDENTIALS],
        }
    }

    fn tunnel<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        if flow.kind == Kind::Tunnel && self.settings.passthrough.find(flow.host()).is_some() {
            return self.admit(flow).into();
        }
        Step::PASS
    }

    fn system<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        self.admit(flow).into()
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, _request: &'a mut Request) -> Step<'a> {
        self.admit(flow).into()
    }

    fn response<'a>(&'a self, flow: &'a mut Flow, response: &'a mut Response) -> Step<'a> {
        self.count_response(flow, response.status.as_u16());
        Step::PASS
    }

    fn finished(&self, flow: &Flow, outcome: &Outcome) {
        if flow.find_slot::<SharedFault>().is_some() {
            return;
        }
        match outcome.denial.as_ref().and_then(fault_scope) {
            Some(scope) => self.count_fault(flow, scope, flow.started + outcome.duration),
            // The proxy sees no response in a passthrough tunnel, so connecting is a success.
            None if flow.kind == Kind::Tunnel && flow.record().upstream_addr.is_some() => {
                if let Some(endpoint) = flow.endpoint() {
                    let (shared, thresholds) = (&self.breakers.shared, self.thresholds(flow));
                    shared.success(endpoint, flow.started, thresholds);
                }
            }
            None => {}
        }
    }
}

/// The scope of the fault that a denial reports. `None` if the host is not at fault, for example if
/// its name does not resolve or if it does not speak a protocol that the client requires.
fn fault_scope(denial: &Denial) -> Option<FaultScope> {
    use Code::{UpstreamTimeout, UpstreamTls, UpstreamUnreachable};
    match (denial.code(), denial.stage()?) {
        (UpstreamUnreachable | UpstreamTimeout | UpstreamTls, Stage::Connect | Stage::Tls) => {
            Some(FaultScope::Host)
        }
        (UpstreamUnreachable | UpstreamTimeout, Stage::Response) => Some(FaultScope::Responses),
        _ => None,
    }
}

fn circuit_open(flow: &Flow, wait: Duration) -> Denial {
    Denial::new(Code::CircuitOpen, "Service temporarily unavailable")
        .with("reason", "circuit_breaker_open")
        .with("upstream", flow.host().to_string())
        .retry_after(wait)
        .rule("circuit_breakers")
        .hint(format!(
            "{} failed repeatedly: wait until its circuit closes, or change circuit_breakers in policy.yaml",
            flow.host()
        ))
}

#[cfg(test)]
mod tests;
