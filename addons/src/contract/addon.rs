//! The trait of an addon, and the results of its hooks.

use std::future::Future;
use std::time::Duration;

use super::body::BoxFuture;
use super::denial::Verdict;
use super::flow::Flow;
use super::mcp::Frame;
use super::message::{DnsAnswer, DnsQuery, Request, Response};
use super::outcome::Outcome;
use super::permit::Addresses;
use super::waits::Room;

/// A hook's result: a verdict, or a future that resolves to one.
///
/// Most hooks return a verdict, without an allocation or a timer. A hook that waits (for a person,
/// for a token) boxes its future, and only then does the chain arm a deadline.
pub struct Step<'a>(pub(super) StepKind<'a>);

pub(super) enum StepKind<'a> {
    Ready(Verdict),
    Wait {
        future: BoxFuture<'a, Verdict>,
        limit: Option<Duration>,
        /// Only for a future that asks a person.
        room: Option<Room>,
    },
}

impl<'a> Step<'a> {
    /// The flow passes.
    pub const PASS: Step<'static> = Step(StepKind::Ready(Ok(())));

    /// Waits for the verdict of a future. The chain denies the flow if the deadline that all addons
    /// share in this phase passes first.
    pub fn wait(future: impl Future<Output = Verdict> + Send + 'a) -> Self {
        Self(StepKind::Wait {
            future: Box::pin(future),
            limit: None,
            room: None,
        })
    }

    /// Waits for the verdict of a future. `limit` replaces the phase's deadline. The chain denies the
    /// flow if the limit passes first.
    pub fn wait_up_to(limit: Duration, future: impl Future<Output = Verdict> + Send + 'a) -> Self {
        Self(StepKind::Wait {
            future: Box::pin(future),
            limit: Some(limit),
            room: None,
        })
    }

    /// Waits, as [`wait_up_to`](Self::wait_up_to) does, for the verdict of a future that asks a
    /// person. The future must hold the flow for the decision only if there is [`Room`].
    pub fn ask_up_to<F>(limit: Duration, ask: impl FnOnce(Room) -> F) -> Self
    where
        F: Future<Output = Verdict> + Send + 'a,
    {
        let room = Room::default();
        Self(StepKind::Wait {
            future: Box::pin(ask(room.clone())),
            limit: Some(limit),
            room: Some(room),
        })
    }

    /// The verdict; `None` if the hook waits. For tests of a single addon.
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

/// An addon's constraints on its position. [`Chain::new`](super::Chain::new) fails if one is
/// violated.
#[derive(Default)]
pub struct Order {
    /// The names of addons that must come before this one, if they are in the chain.
    pub after: &'static [&'static str],
    /// The names of addons that must come after this one, if they are in the chain.
    pub before: &'static [&'static str],
}

/// One link of the chain. A hook that is not implemented passes the flow. An `Err`, a panic or a
/// missed deadline ends the flow.
///
/// Requests pass the addons first to last, responses last to first. So the last addon, which
/// injects secrets, is the first to see the response, and removes the secrets from it.
pub trait Addon: Send + Sync {
    /// Its name in logs, in `explain` and in the [`Order`] of other addons.
    fn name(&self) -> &'static str;

    /// Its constraints on the order of the chain.
    fn order(&self) -> Order {
        Order::default()
    }

    /// Judges the destination of a CONNECT, or of a request outside a tunnel, before the host is
    /// resolved.
    fn tunnel<'a>(&'a self, _flow: &'a mut Flow) -> Step<'a> {
        Step::PASS
    }

    /// Judges a request of a [`Principal::System`](super::Principal::System), before the host is
    /// resolved. Such a flow passes this phase in place of `tunnel` and `request`; `dial` and
    /// `response` follow.
    fn system<'a>(&'a self, _flow: &'a mut Flow) -> Step<'a> {
        Step::PASS
    }

    /// Judges a request's head. May add filters and judges of the request's body.
    fn request<'a>(&'a self, _flow: &'a mut Flow, _request: &'a mut Request) -> Step<'a> {
        Step::PASS
    }

    /// Judges the addresses of the flow's host, before the dialer connects to one of them.
    fn dial<'a>(&'a self, _flow: &'a mut Flow, _addresses: &'a mut Addresses) -> Step<'a> {
        Step::PASS
    }

    /// Judges a response's head. May add filters and judges of the response's body.
    fn response<'a>(&'a self, _flow: &'a mut Flow, _response: &'a mut Response) -> Step<'a> {
        Step::PASS
    }

    /// Judges a DNS question.
    fn dns_query<'a>(&'a self, _flow: &'a mut Flow, _query: &'a DnsQuery) -> Step<'a> {
        Step::PASS
    }

    /// Judges the addresses of a DNS answer.
    fn dns_answer<'a>(&'a self, _flow: &'a mut Flow, _answer: &'a mut DnsAnswer) -> Step<'a> {
        Step::PASS
    }

    /// Judges an MCP request or notification, from the client or the server.
    fn mcp_request<'a>(&'a self, _flow: &'a mut Flow, _frame: &'a mut Frame) -> Step<'a> {
        Step::PASS
    }

    /// Judges the response to an MCP request, whether the server or the client sends the response.
    fn mcp_response<'a>(&'a self, _flow: &'a mut Flow, _frame: &'a mut Frame) -> Step<'a> {
        Step::PASS
    }

    /// Judges the response to a tool call that another gateway sent, or that an agent made itself, and
    /// whose request no flow of the proxy carried.
    fn mcp_report<'a>(&'a self, _flow: &'a mut Flow, _frame: &'a mut Frame) -> Step<'a> {
        Step::PASS
    }

    /// Observes the end of a flow. Called exactly once for each flow, and never for a dry run.
    fn finished(&self, _flow: &Flow, _outcome: &Outcome) {}
}
