//! Methods that we know nothing of.

use std::sync::Arc;

use addons::raw_json::Members;
use serde_json::value::RawValue;

use super::target::Ask;
use super::{Caller, Core, Events, Outcome, method_not_found};

impl Core {
    /// Passes a method on to the only server, where its tools have their own names and it declares
    /// extensions. Nobody else has it.
    pub(super) async fn extension(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        method: &Arc<str>,
        params: Option<&RawValue>,
        events: &Events,
    ) -> Outcome {
        let unknown = async { Err(method_not_found(method)) };
        if is_ours(method) {
            return self.answer(caller, method, params, unknown).await;
        }
        let mounts = self.mounts.of(&caller.container);
        let [sole] = &mounts[..] else {
            return self.answer(caller, method, params, unknown).await;
        };
        let settings = sole.settings();
        if !settings.prefix.is_empty() {
            return self.answer(caller, method, params, unknown).await;
        }
        let target = self.target(caller, method, &settings, None).await?;
        let capabilities = Members::read(&target.pooled.session.described().capabilities);
        let extends = capabilities
            .is_ok_and(|has| has.get("extensions").is_some() || has.get("experimental").is_some());
        if !extends {
            return self.answer(caller, method, params, unknown).await;
        }
        let ask = Ask {
            caller,
            target: &target,
            method,
            params,
            changes: &[],
            events,
        };
        self.ask(ask).await
    }
}

/// Whether the protocol itself has the method, or had it, so that no extension does.
fn is_ours(method: &str) -> bool {
    let ours = [
        "tasks/",
        "tools/",
        "prompts/",
        "resources/",
        "completion/",
        "logging/",
        "server/",
        "subscriptions/",
        "notifications/",
        "sampling/",
        "elicitation/",
        "roots/",
    ];
    ours.iter().any(|prefix| method.starts_with(prefix)) || matches!(method, "initialize" | "ping")
}
