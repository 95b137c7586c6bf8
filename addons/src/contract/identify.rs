//! The link of the chain that finds the principal of a flow.

use super::addon::Order;
use super::denial::Verdict;
use super::flow::Flow;
use super::message::Request;
use super::principal::Principal;

/// Finds the principal of a flow. The chain sets the principal that this link returns; addons have
/// no write access to a flow's principal.
pub trait Identify: Send + Sync {
    /// Its name in logs, in `explain` and in the [`Order`] of other addons.
    fn name(&self) -> &'static str;

    /// Its constraints on the order of the chain.
    fn order(&self) -> Order {
        Order::default()
    }

    /// Finds the principal of a flow. Removes `X-Container-Id`, in which a client may claim an id,
    /// from a request's head.
    fn identify(&self, flow: &Flow, request: Option<&mut Request>) -> Identified;
}

/// The principal of a flow, and whether the flow may go on. A denied principal is returned too, so
/// that the audit names it.
pub struct Identified {
    /// The principal to set; `None` keeps the one that the flow already has.
    pub principal: Option<Principal>,
    /// Whether the flow may go on.
    pub verdict: Verdict,
}
