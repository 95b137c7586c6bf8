//! The one ordered chain that every flow passes.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::addon::{Addon, Step, StepKind};
use super::denial::{Denial, Verdict};
use super::dns::{DnsAnswer, DnsQuery};
use super::flow::{Flow, Outcome};
use super::judge::{Buffered, Judges};
use super::message::{Request, Response};
use super::names;
use super::permit::{Addresses, Permit};

/// The addons without which there is no protection at all.
const REQUIRED: [&str; 2] = [names::IDENTITY, names::POLICY];

/// Proof that a flow passed its first phase: the resolver asks for it, so nothing is looked up
/// before the verdict.
#[derive(Debug)]
pub struct ResolvePermit(());

/// One way in which a chain is out of order.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OrderError {
    /// Two addons share a name.
    #[error("{0} stands in the chain twice")]
    Twice(&'static str),
    /// Without it the chain protects nothing.
    #[error("{0} is missing: it cannot be switched off")]
    Missing(&'static str),
    /// One stands on the wrong side of another.
    #[error("{first} must stand before {second}")]
    Before {
        /// What must come first.
        first: &'static str,
        /// What must come later.
        second: &'static str,
    },
    /// Nobody before it provides what it needs.
    #[error("{addon} needs {slot}, which no addon before it provides")]
    Unprovided {
        /// What needs it.
        addon: &'static str,
        /// The type that is missing.
        slot: &'static str,
    },
}

/// The addons in their order, checked. Immutable: a reload builds another one, and a flow keeps
/// the one it began with.
pub struct Chain {
    addons: Vec<Arc<dyn Addon>>,
    deadline: Duration,
}

impl Chain {
    /// Checks the order and names every violation at once. `deadline` bounds a phase from the
    /// moment when an addon waits.
    pub fn new(addons: Vec<Arc<dyn Addon>>, deadline: Duration) -> Result<Self, Vec<OrderError>> {
        let errors = check_order(&addons);
        if errors.is_empty() {
            Ok(Self { addons, deadline })
        } else {
            Err(errors)
        }
    }

    /// The addons' names, in their order.
    pub fn names(&self) -> Vec<&'static str> {
        self.addons.iter().map(|addon| addon.name()).collect()
    }

    /// A CONNECT, or a plain request's authority.
    pub async fn tunnel(&self, flow: &mut Flow) -> Result<ResolvePermit, Denial> {
        let forward = self.addons.iter();
        self.run(forward, flow, &mut (), |addon, flow, ()| addon.tunnel(flow))
            .await?;
        Ok(ResolvePermit(()))
    }

    /// What the appliance asks for on its own behalf, in the place of a tunnel and a request.
    pub async fn system(&self, flow: &mut Flow) -> Result<ResolvePermit, Denial> {
        let forward = self.addons.iter();
        self.run(forward, flow, &mut (), |addon, flow, ()| addon.system(flow))
            .await?;
        Ok(ResolvePermit(()))
    }

    /// A request's head.
    pub async fn request(
        &self,
        flow: &mut Flow,
        request: &mut Request,
    ) -> Result<ResolvePermit, Denial> {
        let forward = self.addons.iter();
        self.run(forward, flow, request, |addon, flow, request| {
            addon.request(flow, request)
        })
        .await?;
        Ok(ResolvePermit(()))
    }

    /// A buffered body, judge by judge. Each judge has the deadline of a phase.
    pub async fn judge<Head>(
        &self,
        flow: &mut Flow,
        head: &mut Head,
        judges: Judges<Head>,
        body: Buffered,
    ) -> Result<Bytes, Denial> {
        judges.judge(flow, head, body, self.deadline).await
    }

    /// What the name resolved to. The only place where a [`Permit`] is minted.
    pub async fn dial(&self, flow: &mut Flow, mut addresses: Addresses) -> Result<Permit, Denial> {
        let forward = self.addons.iter();
        self.run(forward, flow, &mut addresses, |addon, flow, addresses| {
            addon.dial(flow, addresses)
        })
        .await?;
        let principal = flow.principal.clone();
        match principal {
            Some(principal) if !addresses.0.is_empty() => {
                Ok(Permit::mint(flow, addresses, principal))
            }
            _ => Err(Denial::internal()),
        }
    }

    /// A response's head, last addon first.
    pub async fn response(&self, flow: &mut Flow, response: &mut Response) -> Verdict {
        let backward = self.addons.iter().rev();
        self.run(backward, flow, response, |addon, flow, response| {
            addon.response(flow, response)
        })
        .await
    }

    /// A DNS question.
    pub async fn dns_query(
        &self,
        flow: &mut Flow,
        query: &mut DnsQuery,
    ) -> Result<ResolvePermit, Denial> {
        let forward = self.addons.iter();
        self.run(forward, flow, query, |addon, flow, query| {
            addon.dns_query(flow, query)
        })
        .await?;
        Ok(ResolvePermit(()))
    }

    /// A DNS answer, last addon first.
    pub async fn dns_answer(&self, flow: &mut Flow, answer: &mut DnsAnswer) -> Verdict {
        let backward = self.addons.iter().rev();
        self.run(backward, flow, answer, |addon, flow, answer| {
            addon.dns_answer(flow, answer)
        })
        .await
    }

    /// Tells every addon that the flow ended. One that panics does not keep it from the others.
    pub fn finished(&self, flow: &Flow, outcome: &Outcome) {
        for addon in &self.addons {
            let _ = catch_unwind(AssertUnwindSafe(|| addon.finished(flow, outcome)));
        }
    }

    async fn run<'c, S>(
        &'c self,
        addons: impl Iterator<Item = &'c Arc<dyn Addon>>,
        flow: &mut Flow,
        subject: &mut S,
        hook: impl for<'a> Fn(&'a dyn Addon, &'a mut Flow, &'a mut S) -> Step<'a>,
    ) -> Verdict {
        let mut deadline = None;
        for addon in addons {
            flow.enter(addon.name());
            let called = call(&hook, &**addon, flow, subject);
            let verdict = match called {
                Ok(Step(StepKind::Ready(verdict))) => verdict,
                Ok(Step(StepKind::Wait { future, limit })) => {
                    let until = match limit {
                        Some(limit) => Instant::now() + limit,
                        None => *deadline.get_or_insert_with(|| Instant::now() + self.deadline),
                    };
                    let waiting = timeout_at(until, AssertUnwindSafe(future).catch_unwind());
                    // Few steps wait, and every request would carry the room for it.
                    match Box::pin(waiting).await {
                        Ok(Ok(verdict)) => verdict,
                        Ok(Err(_panic)) => Err(Denial::internal().rule("panic")),
                        Err(_elapsed) => Err(Denial::internal().rule("deadline")),
                    }
                }
                Err(_panic) => Err(Denial::internal().rule("panic")),
            };
            verdict.map_err(|denial| denial.by(addon.name()))?;
        }
        Ok(())
    }
}

/// Calls a hook and catches its panic.
fn call<'a, S>(
    hook: &impl Fn(&'a dyn Addon, &'a mut Flow, &'a mut S) -> Step<'a>,
    addon: &'a dyn Addon,
    flow: &'a mut Flow,
    subject: &'a mut S,
) -> std::thread::Result<Step<'a>> {
    let arguments = (flow, subject);
    catch_unwind(AssertUnwindSafe(move || {
        let (flow, subject) = arguments;
        hook(addon, flow, subject)
    }))
}

fn check_order(addons: &[Arc<dyn Addon>]) -> Vec<OrderError> {
    let names: Vec<_> = addons.iter().map(|addon| addon.name()).collect();
    let place = |name: &str| names.iter().position(|other| *other == name);
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for name in &names {
        if !seen.insert(*name) {
            errors.push(OrderError::Twice(name));
        }
    }
    for name in REQUIRED {
        if place(name).is_none() {
            errors.push(OrderError::Missing(name));
        }
    }
    let mut provided = Vec::new();
    for (at, addon) in addons.iter().enumerate() {
        let order = addon.order();
        let name = addon.name();
        for other in order.after {
            if place(other).is_some_and(|place| place > at) {
                errors.push(OrderError::Before {
                    first: other,
                    second: name,
                });
            }
        }
        for other in order.before {
            if place(other).is_some_and(|place| place < at) {
                errors.push(OrderError::Before {
                    first: name,
                    second: other,
                });
            }
        }
        for slot in order.needs {
            if !provided.contains(&slot) {
                errors.push(OrderError::Unprovided {
                    addon: name,
                    slot: slot.name(),
                });
            }
        }
        provided.extend(order.provides);
    }
    errors
}
