//! Finding on whose behalf a flow runs.

use super::addon::Order;
use super::denial::Verdict;
use super::flow::Flow;
use super::message::Request;
use super::principal::Principal;

/// The link of the chain that finds the principal of a flow. It only answers; the chain sets what
/// it answered, and nothing else can.
pub trait Identify: Send + Sync {
    /// Its name in logs, in `explain` and in the order of others.
    fn name(&self) -> &'static str;

    /// Where it must stand.
    fn order(&self) -> Order {
        Order::default()
    }

    /// Finds the principal of a flow: of a CONNECT or a plain request's authority, of a DNS
    /// question, or of a request, from whose head it takes its own fields.
    fn identify(&self, flow: &Flow, request: Option<&mut Request>) -> Identified;
}

/// Who is behind a flow, and whether that principal may begin one. A principal that is denied is
/// named all the same, so that the audit tells whose flow it was.
pub struct Identified {
    /// On whose behalf the flow runs; `None` leaves what was known before.
    pub principal: Option<Principal>,
    /// Whether the flow may go on.
    pub verdict: Verdict,
}
