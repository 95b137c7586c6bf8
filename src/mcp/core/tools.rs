//! Calls of tools and prompts, by their exposed names.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Code, Definition, Denial, RpcError};
use addons::mcp::{OverrideRule, ServerKind, ServerSettings};
use futures_util::FutureExt;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use super::exchange::{Attempt, Failure};
use super::execution;
use super::judged_call::Refused;
use super::lease::Lease;
use super::lists::{PROMPTS, TOOLS};
use super::params::{Change, TASK, quote};
use super::readiness::denial_of;
use super::resources::learn_links;
use super::target::Target;
use super::view::{PromptView, ToolView};
use super::{
    Caller, ClientRequest, Core, List, Mount, MountError, Outcome, invalid_params, members,
    rpc_error,
};

/// The longest requested name of an unknown tool or prompt that is recorded, in bytes. A longer
/// name is cut.
const MAX_RECORDED_NAME: usize = 256;

/// How long a call waits for a server that is being started. Longer than a list, since the call needs
/// this server.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A tool that the caller sees, and its server.
#[derive(Clone)]
pub struct FoundTool {
    pub(super) settings: Arc<ServerSettings>,
    /// The tool's definition.
    pub definition: Arc<Definition>,
}

/// The names of a server and, at that server, of its tool.
pub(super) type ToolNames = (Arc<str>, Arc<str>);

impl FoundTool {
    /// The name of the tool's server.
    pub fn server(&self) -> Arc<str> {
        Arc::clone(&self.settings.name)
    }

    fn names(&self) -> ToolNames {
        (
            Arc::clone(&self.settings.name),
            Arc::clone(&self.definition.name),
        )
    }
}

impl Core {
    /// The tools that the caller sees. With `wait`, waits for servers whose tools are not cached.
    pub(super) async fn tools(self: &Arc<Self>, caller: &Arc<Caller>, wait: bool) -> Arc<ToolView> {
        let lists = self.read(&TOOLS, caller, wait).await;
        let settings = (self.rules)().settings;
        let lease = Lease::of(&caller.container);
        let view = lease.view(caller);
        view.tools(&settings, caller, lists, || lease.views())
    }

    /// The prompts that the caller sees.
    pub(super) async fn prompts(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        wait: bool,
    ) -> Arc<PromptView> {
        let lists = self.read(&PROMPTS, caller, wait).await;
        let settings = (self.rules)().settings;
        let lease = Lease::of(&caller.container);
        let view = lease.view(caller);
        view.prompts(&settings, lists, || lease.views())
    }

    /// The server and the definition of the tool that a request calls. Refuses an unknown tool.
    pub(super) async fn called_tool(
        self: &Arc<Self>,
        request: &ClientRequest,
    ) -> Result<FoundTool, RpcError> {
        self.find_called(request, request.tool.as_ref()).await
    }

    /// As [`Self::called_tool`]. `known` is the tool if it was looked up already.
    async fn find_called(
        self: &Arc<Self>,
        request: &ClientRequest,
        known: Option<&FoundTool>,
    ) -> Result<FoundTool, RpcError> {
        let caller = &request.caller;
        let begun = Instant::now();
        let exposed = name(request, "the name of the tool is missing")?;
        let known = match known {
            Some(tool) => Some(tool.clone()),
            None => self.find_tool(caller, &exposed, false).await,
        };
        let found = match known {
            Some(tool) if self.has_tools_of(caller, &tool.settings) => Some(tool),
            // The tool is unknown, or this session has no current list of its server's tools. A
            // changed definition must be compared with the accepted definition before the call.
            known => {
                let server = known.as_ref().map(|tool| &*tool.settings.name);
                self.started(caller, List::Tools, &exposed, server).await;
                self.find_tool(caller, &exposed, true).await
            }
        };
        found.ok_or_else(|| self.refuse_unknown(request, "tool", &exposed, begun))
    }

    /// Calls a tool. If a person must decide, waits for the decision; or returns a task, if the
    /// client takes one.
    pub(super) async fn call_tool(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let mut attempt = Attempt::default();
        let found = self.called_tool(request).await?;
        let called = found.names();
        // Boxed, so that a call that waits for a person does not keep room for it.
        let outcome = Box::pin(self.call_found(request, found, &mut attempt)).await;
        let Some(asked) = attempt.asked.take() else {
            return outcome;
        };
        if request.caller.takes_tasks {
            return self.begin_task(request, called, asked);
        }
        let approved = Box::pin(self.wait_for_person(request, asked)).await;
        let approved = approved.map_err(|denial| rpc_error(&denial))?;
        Box::pin(self.call_approved(request, &called, approved)).await
    }

    /// Makes a call that a person approved. Finds the tool and judges the call again, since all may
    /// have changed meanwhile. `called` is the tool about which the person was asked.
    pub(super) async fn call_approved(
        self: &Arc<Self>,
        request: &ClientRequest,
        called: &ToolNames,
        approved: Box<Refused>,
    ) -> Outcome {
        let mut attempt = Attempt {
            approved: Some(approved),
            ..Attempt::default()
        };
        let found = self.find_called(request, None).await;
        let outcome = match found {
            Ok(found) if found.names() == *called => {
                self.call_found(request, found, &mut attempt).await
            }
            // The exposed name is another tool's now: the call is not sent.
            Ok(_) => Ok(RawValue::NULL.to_owned()),
            Err(error) => Err(error),
        };
        match attempt.approved {
            Some(unsent) => {
                let denial = unsent.end();
                outcome.and(Err(rpc_error(&denial)))
            }
            None => outcome,
        }
    }

    async fn call_found(
        self: &Arc<Self>,
        request: &ClientRequest,
        found: FoundTool,
        attempt: &mut Attempt,
    ) -> Outcome {
        let FoundTool {
            settings,
            definition,
        } = found;
        let name = Some(&definition.name);
        let mut target = self.target(request, &settings, name).await?;
        let original = quote(&definition.name);
        target.definition = Some(definition);
        self.ensure_level(&request.caller, &target).await;
        let changes = [("name", Some(&*original)), (TASK, None)];
        let forwarding = self.forward_and_learn(request, &target, &changes, attempt);
        forwarding.await?
    }

    /// Sends a request to a server. Remembers this server for the resources to which the result
    /// links.
    pub(super) async fn forward_and_learn(
        self: &Arc<Self>,
        request: &ClientRequest,
        target: &Target,
        changes: &[Change<'_>],
        attempt: &mut Attempt,
    ) -> Result<Outcome, Failure> {
        let outcome = self.try_forward(request, target, changes, attempt).await;
        if let Ok(Ok(result)) = &outcome {
            let lease = Lease::of(&request.caller.container);
            learn_links(lease, &target.settings.name, result);
        }
        outcome
    }

    /// Whether the open session has read the server's tools, and the list is not outdated.
    fn has_tools_of(self: &Arc<Self>, caller: &Arc<Caller>, settings: &ServerSettings) -> bool {
        let mount = self.mounts.find(&caller.container, &settings.name);
        let session = mount.and_then(|mount| self.session(caller, &mount).now_or_never());
        let pooled = session.and_then(Result::ok);
        pooled.is_some_and(|pooled| pooled.catalog.has(List::Tools))
    }

    /// Waits until the tools or prompts of a server are read, at most [`START_TIMEOUT`]. If `server`
    /// is not known, waits for one that may have a tool or prompt with this name.
    pub(super) async fn started(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        list: List,
        name: &str,
        server: Option<&str>,
    ) {
        if let Some(mount) = self.mount_for(caller, list, name, server) {
            let reading = async {
                if let Ok(pooled) = self.session(caller, &mount).await {
                    match list {
                        List::Prompts => drop(pooled.catalog.prompts().await),
                        _ => drop(pooled.catalog.tools().await),
                    }
                }
            };
            // Whoever reads the list next learns why there is none.
            drop(timeout(START_TIMEOUT, reading).await);
        }
    }

    /// The server, or one that may have a tool or prompt with this name: by an override, or by its
    /// prefix.
    pub(super) fn mount_for(
        &self,
        caller: &Caller,
        list: List,
        name: &str,
        server: Option<&str>,
    ) -> Option<Arc<Mount>> {
        let settings = (self.rules)().settings;
        let renames = |rule: &Arc<OverrideRule>| rule.rename.as_deref() == Some(name);
        let mut overrides = settings.overrides.iter();
        let renamed = overrides.find(|(_, rules)| rules.iter().any(renames));
        let renamed = renamed.filter(|_| list == List::Tools);
        let server = server.or(renamed.map(|((server, _), _)| &**server));
        let mut mounts = self.mounts.of(&caller.container).into_iter();
        mounts.find(|mount| match (mount.settings(), server) {
            (settings, Some(server)) => *settings.name == *server,
            (settings, None) => name.starts_with(&*settings.prefix),
        })
    }

    pub(super) async fn find_tool(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        name: &str,
        wait: bool,
    ) -> Option<FoundTool> {
        let view = self.tools(caller, wait).await;
        let tool = view.exposed.find(name)?;
        Some(FoundTool {
            settings: Arc::clone(&tool.server),
            definition: Arc::clone(&tool.definition),
        })
    }

    /// The tool with an exposed name; `None` if the caller does not see the tool.
    pub async fn tool(self: &Arc<Self>, caller: &Arc<Caller>, name: &str) -> Option<FoundTool> {
        match self.find_tool(caller, name, false).await {
            Some(found) => Some(found),
            None => self.find_tool(caller, name, true).await,
        }
    }

    /// The server of the prompt that a request names, and the prompt's name at that server. Refuses
    /// an unknown prompt.
    pub(super) async fn named_prompt(
        self: &Arc<Self>,
        request: &ClientRequest,
    ) -> Result<(Arc<ServerSettings>, Arc<str>), RpcError> {
        let caller = &request.caller;
        let begun = Instant::now();
        let exposed = name(request, "the name of the prompt is missing")?;
        let found = self.find_prompt(caller, &exposed).await;
        found.ok_or_else(|| self.refuse_unknown(request, "prompt", &exposed, begun))
    }

    pub(super) async fn get_prompt(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        let (settings, original) = self.named_prompt(request).await?;
        let target = self.target(request, &settings, Some(&original)).await?;
        let original = quote(&original);
        let changes = [("name", Some(&*original))];
        let mut attempt = Attempt::default();
        let forwarding = self.forward_and_learn(request, &target, &changes, &mut attempt);
        forwarding.await?
    }

    /// The server of a prompt, and the prompt's name at that server.
    pub(super) async fn find_prompt(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        name: &str,
    ) -> Option<(Arc<ServerSettings>, Arc<str>)> {
        let mut view = self.prompts(caller, false).await;
        if view.exposed.find(name).is_none() {
            self.started(caller, List::Prompts, name, None).await;
            view = self.prompts(caller, true).await;
        }
        let prompt = view.exposed.find(name)?;
        Some((Arc::clone(&prompt.server), Arc::clone(&prompt.original)))
    }

    /// The target of a request: an open session with the server. Refuses the request if no session
    /// can be opened.
    pub(super) async fn target(
        self: &Arc<Self>,
        request: &ClientRequest,
        settings: &Arc<ServerSettings>,
        name: Option<&Arc<str>>,
    ) -> Result<Target, RpcError> {
        let caller = &request.caller;
        let begun = Instant::now();
        let opened = match self.mounts.find(&caller.container, &settings.name) {
            Some(mount) => self
                .session(caller, &mount)
                .await
                .map(|pooled| (mount, pooled)),
            None => Err(MountError::CannotStart(
                "mcp.yaml no longer has the server for this container".to_owned(),
            )),
        };
        match opened {
            Ok((mount, pooled)) => Ok(Target {
                name: name.cloned(),
                ..Target::of_session(&mount, &pooled)
            }),
            Err(error) => {
                let tool = name.map(|name| &**name);
                self.record_unsent(request, settings, tool, &error, begun);
                let denial = denial_of(&caller.container, settings, error);
                Err(self.refuse(request, Some(&settings.name), name, denial))
            }
        }
    }

    /// Counts a tool call whose server cannot be used. `tool` is the tool's name in the server's
    /// list; `None` if the list is not known.
    fn record_unsent(
        &self,
        request: &ClientRequest,
        settings: &ServerSettings,
        tool: Option<&str>,
        error: &MountError,
        begun: Instant,
    ) {
        if &*request.method == "tools/call" {
            execution::record_unsent(&self.metrics, settings, tool, error, begun);
        }
    }

    /// Refuses a request with an unknown name. If the list of a server with a matching prefix was
    /// never read, the denial reports the failure of that server.
    fn refuse_unknown(
        &self,
        request: &ClientRequest,
        kind: &str,
        name: &str,
        begun: Instant,
    ) -> RpcError {
        let recorded = name.get(..name.floor_char_boundary(MAX_RECORDED_NAME));
        let recorded: Option<Arc<str>> = recorded.map(Arc::from);
        let container = &request.caller.container;
        for mount in self.mounts.of(container) {
            let settings = mount.settings();
            let may_have_it = name.starts_with(&*settings.prefix);
            let known = mount.known(container);
            let is_unread = match kind {
                "tool" => known.tools.is_none(),
                _ => known.prompts.is_none(),
            };
            if may_have_it && is_unread {
                let failure = mount.health().failure;
                let failure = failure.unwrap_or_else(|| "the server does not answer".to_owned());
                let error = match &settings.kind {
                    ServerKind::E2b(_) => MountError::NotImplemented(failure),
                    _ => MountError::CannotStart(failure),
                };
                self.record_unsent(request, &settings, None, &error, begun);
                let denial = denial_of(container, &settings, error);
                return self.refuse(request, Some(&settings.name), recorded.as_ref(), denial);
            }
        }
        let shown = recorded.as_deref().unwrap_or_default();
        let sentence = format!("Unknown {kind}: {shown}");
        let denial = Denial::new(Code::ToolNotFound, sentence).with(kind, shown);
        self.refuse(request, None, recorded.as_ref(), denial)
    }
}

/// The `name` of a request.
fn name(request: &ClientRequest, missing: &'static str) -> Result<String, RpcError> {
    let members = members(request)?;
    let name = members
        .text("name")
        .ok_or_else(|| invalid_params(missing))?;
    Ok(name.into_owned())
}
