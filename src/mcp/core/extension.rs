//! Methods of protocol extensions that the gateway does not know.

use std::sync::Arc;

use addons::json::Members;
use addons::mcp::ServerSettings;

use super::target::Target;
use super::{ClientRequest, Core, Outcome, method_not_found};

impl Core {
    /// Forwards a request to the client's only server if that server declares extensions. Refuses
    /// the method otherwise: among several servers, the gateway cannot tell which one defines it.
    pub(super) async fn extension(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        if let Some(settings) = self.sole_server(request)
            && !is_protocol_method(&request.method)
        {
            let target = self.target(request, &settings, None).await?;
            if declares_extensions(&target) {
                return self.forward(request, &target, &[]).await;
            }
        }
        let unknown = method_not_found(&request.method);
        self.refuse_judged(request, unknown).await
    }

    /// The only server that the client sees, if that server's prefix is empty.
    fn sole_server(&self, request: &ClientRequest) -> Option<Arc<ServerSettings>> {
        let mounts = self.mounts.of(&request.caller.container);
        let [sole] = &mounts[..] else {
            return None;
        };
        Some(sole.settings()).filter(|settings| settings.prefix.is_empty())
    }
}

fn declares_extensions(target: &Target) -> bool {
    let declared = Members::read(&target.pooled.session.described().capabilities);
    declared.is_ok_and(|has| has.get("extensions").is_some() || has.get("experimental").is_some())
}

/// Whether the method is in a namespace of the protocol itself, so that no extension defines it.
fn is_protocol_method(method: &str) -> bool {
    let prefixes = [
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
    prefixes.iter().any(|prefix| method.starts_with(prefix))
        || matches!(method, "initialize" | "ping")
}
