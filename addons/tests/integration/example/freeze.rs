use std::sync::Arc;

use addons::contract::{Addon, Code, Denial, Flow, Order, Request, Step, Verdict};

/// What the addon needs from outside: the engine implements it, and so does a test.
pub trait Freezes: Send + Sync {
    /// Whether nothing may be changed at the upstream now.
    fn is_frozen(&self, upstream: &str) -> bool;
}

/// Denies writes to an upstream while it is frozen.
pub struct Freeze(pub Arc<dyn Freezes>);

impl Freeze {
    fn judge(&self, flow: &Flow, request: &Request) -> Verdict {
        if request.method.is_safe() || !self.0.is_frozen(flow.upstream()) {
            return Ok(());
        }
        let sentence = format!("Write not allowed: {} is frozen", flow.host());
        Err(Denial::new(Code::WriteNotAllowed, sentence).rule("freeze"))
    }
}

impl Addon for Freeze {
    fn name(&self) -> &'static str {
        "freeze"
    }

    fn order(&self) -> Order {
        Order {
            before: &["credentials"],
            ..Order::default()
        }
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        self.judge(flow, request).into()
    }
}
