//! One step of the chain.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::denial::Verdict;
use super::dns::{DnsAnswer, DnsQuery};
use super::flow::Flow;
use super::mcp::Frame;
use super::message::{Request, Response};
use super::outcome::Outcome;
use super::permit::Addresses;
use super::slots::Slot;

/// What a hook answers: a verdict now, or later.
///
/// Most hooks know at once. Those pay for no allocation and no timer; a hook that really waits
/// (for a person, for a token) boxes its future, and only then a deadline is armed.
pub struct Step<'a>(pub(super) StepKind<'a>);

pub(super) enum StepKind<'a> {
    Ready(Verdict),
    Wait {
        future: Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>,
        limit: Option<Duration>,
    },
}

impl<'a> Step<'a> {
    /// Passes, now.
    pub const PASS: Step<'static> = Step(StepKind::Ready(Ok(())));

    /// Answers when the future does; the phase's deadline denies a future that takes too long.
    pub fn wait(future: impl Future<Output = Verdict> + Send + 'a) -> Self {
        Self(StepKind::Wait {
            future: Box::pin(future),
            limit: None,
        })
    }

    /// The same under a limit of its own, for what takes as long as people take.
    pub fn wait_up_to(limit: Duration, future: impl Future<Output = Verdict> + Send + 'a) -> Self {
        Self(StepKind::Wait {
            future: Box::pin(future),
            limit: Some(limit),
        })
    }
}

impl Step<'_> {
    /// The verdict of a hook that answered at once, for tests of a single addon.
    #[must_use]
    pub fn ready(self) -> Option<Verdict> {
        match self.0 {
            StepKind::Ready(verdict) => Some(verdict),
            StepKind::Wait { .. } => None,
        }
    }
}

impl From<Verdict> for Step<'_> {
    fn from(verdict: Verdict) -> Self {
        Self(StepKind::Ready(verdict))
    }
}

/// Where an addon must stand. The chain refuses to start when any of it does not hold.
#[derive(Default)]
pub struct Order {
    /// What it leaves in `flow.slots` for others.
    pub provides: Vec<Slot>,
    /// What an earlier addon must have left.
    pub needs: Vec<Slot>,
    /// The names of those that must stand before it, where they are in the chain at all.
    pub after: &'static [&'static str],
    /// The names of those that must stand behind it, where they are in the chain at all.
    pub before: &'static [&'static str],
}

/// One step of the chain. A hook that is not written passes; an `Err` ends the flow, whatever
/// the reason. A panic or a missed deadline is an `Err` too.
///
/// Requests run through the addons first to last, responses last to first, so what added a
/// secret last is the first to see an echo of it.
pub trait Addon: Send + Sync {
    /// Its name in logs, in `explain` and in the order of others.
    fn name(&self) -> &'static str;

    /// Where it must stand.
    fn order(&self) -> Order {
        Order::default()
    }

    /// A CONNECT, or a plain request's authority, before a byte goes out.
    fn tunnel<'a>(&'a self, _flow: &'a mut Flow) -> Step<'a> {
        Step::PASS
    }

    /// What the appliance is about to ask for on its own behalf, before anything is looked up.
    /// Such a flow passes this phase in the place of `tunnel` and `request`, then `dial`.
    fn system<'a>(&'a self, _flow: &'a mut Flow) -> Step<'a> {
        Step::PASS
    }

    /// A request's head; its body goes through the filters that are pushed here.
    fn request<'a>(&'a self, _flow: &'a mut Flow, _request: &'a mut Request) -> Step<'a> {
        Step::PASS
    }

    /// What the name resolved to, before one of the addresses is connected to.
    fn dial<'a>(&'a self, _flow: &'a mut Flow, _addresses: &'a mut Addresses) -> Step<'a> {
        Step::PASS
    }

    /// A response's head; its body goes through the filters that are pushed here.
    fn response<'a>(&'a self, _flow: &'a mut Flow, _response: &'a mut Response) -> Step<'a> {
        Step::PASS
    }

    /// A DNS question.
    fn dns_query<'a>(&'a self, _flow: &'a mut Flow, _query: &'a DnsQuery) -> Step<'a> {
        Step::PASS
    }

    /// The addresses that the answer would give away.
    fn dns_answer<'a>(&'a self, _flow: &'a mut Flow, _answer: &'a mut DnsAnswer) -> Step<'a> {
        Step::PASS
    }

    /// An MCP request or notification, of either side.
    fn mcp_request<'a>(&'a self, _flow: &'a mut Flow, _frame: &'a mut Frame) -> Step<'a> {
        Step::PASS
    }

    /// The response to an MCP request, of either side.
    fn mcp_response<'a>(&'a self, _flow: &'a mut Flow, _frame: &'a mut Frame) -> Step<'a> {
        Step::PASS
    }

    /// The flow ended: called exactly once for each flow that began. Nothing can be denied here.
    fn finished(&self, _flow: &Flow, _outcome: &Outcome) {}
}
