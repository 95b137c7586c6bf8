use std::sync::Arc;

use addons::contract::settings::{Files, parse_method};
use addons::contract::{Addon, Code, Denial, Flow, Order, Request, Step, Verdict, names};
use http::Method;
use prometheus::{IntCounter, Registry};

/// `freeze` in `policy.yaml`.
pub struct FreezeSettings {
    /// The methods that are denied at a frozen upstream.
    pub methods: Vec<Method>,
}

impl FreezeSettings {
    /// Reads the settings.
    pub fn read(files: &Files<'_>) -> Self {
        let fields = files.policy.fields().section("freeze");
        // Every method that may change something.
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        Self {
            methods: fields.or("methods", writes.to_vec(), |at| {
                at.filled_list(|at| at.parse(parse_method))
            }),
        }
    }
}

/// Tells the addon which upstreams are frozen. The engine implements this trait, and so can a test.
pub trait Freezes: Send + Sync {
    /// Whether writes to this upstream are denied now.
    fn is_frozen(&self, upstream: &str) -> bool;
}

/// Denies writes to an upstream while it is frozen.
pub struct Freeze {
    settings: FreezeSettings,
    freezes: Arc<dyn Freezes>,
    denied: IntCounter,
}

impl Freeze {
    /// Registers the counter. Call it once: the counter is kept over reloads.
    pub fn counter(registry: &Registry) -> prometheus::Result<IntCounter> {
        let help = "Writes that were denied because their upstream was frozen";
        let denied = IntCounter::new("proxy_frozen_writes_total", help)?;
        registry.register(Box::new(denied.clone()))?;
        Ok(denied)
    }

    /// Makes the addon from its settings, its port and its counter.
    pub fn new(settings: FreezeSettings, freezes: Arc<dyn Freezes>, denied: IntCounter) -> Self {
        Self {
            settings,
            freezes,
            denied,
        }
    }

    fn judge(&self, flow: &Flow, request: &Request) -> Verdict {
        let is_write = self.settings.methods.contains(&request.method);
        if !is_write || !self.freezes.is_frozen(flow.upstream_label()) {
            return Ok(());
        }
        flow.effect(|| self.denied.inc());
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
            before: &[names::CREDENTIALS],
            ..Order::default()
        }
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        self.judge(flow, request).into()
    }
}
