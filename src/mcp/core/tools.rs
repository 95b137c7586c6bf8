//! Calls of tools and prompts, by their exposed names.

use std::sync::Arc;

use addons::contract::{Code, Definition, Denial, RpcError};
use addons::mcp::ServerSettings;
use futures_util::FutureExt;
use serde_json::value::RawValue;

use super::lease::Lease;
use super::lists::{Prompts, Tools};
use super::params::quote;
use super::resources::learn_links;
use super::target::{Ask, Target};
use super::view::{PromptView, ToolView};
use super::{Caller, Core, Events, List, Outcome, invalid_params, members};

impl Core {
    /// The tools that the caller sees. With `wait`, servers whose tools are not known are waited
    /// for.
    pub(super) async fn tools(self: &Arc<Self>, caller: &Arc<Caller>, wait: bool) -> Arc<ToolView> {
        let lists = self.read::<Tools>(caller, wait).await;
        let settings = (self.rules)().settings;
        let view = Lease::of(&caller.container).view(caller);
        view.tools(&settings, caller, lists)
    }

    /// The prompts that the caller sees.
    pub(super) async fn prompts(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        wait: bool,
    ) -> Arc<PromptView> {
        let lists = self.read::<Prompts>(caller, wait).await;
        let settings = (self.rules)().settings;
        let view = Lease::of(&caller.container).view(caller);
        view.prompts(&settings, lists)
    }

    pub(super) async fn call_tool(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        method: &Arc<str>,
        params: Option<&RawValue>,
        events: &Events,
    ) -> Outcome {
        let exposed = name(params, "the name of the tool is missing")?;
        let found = match self.find_tool(caller, &exposed, false).await {
            Some((settings, tool)) if self.has_tools_of(caller, &settings) => {
                Some((settings, tool))
            }
            // Its server may not have been asked yet, or said that its tools changed: a definition
            // that changed must be compared with its pin before the call.
            _ => self.find_tool(caller, &exposed, true).await,
        };
        let (settings, definition) = match found {
            Some(found) => found,
            None => {
                let denial = self.why_unknown(caller, "tool", &exposed).await;
                return Err(self.refuse(caller, method, None, denial));
            }
        };
        let target = self
            .target(caller, method, &settings, Some(&definition.name))
            .await?;
        let target = Target {
            definition: Some(Arc::clone(&definition)),
            ..target
        };
        let original = quote(&definition.name);
        let changes = [("name", Some(&*original))];
        let changes = if *definition.name == exposed {
            &changes[..0]
        } else {
            &changes
        };
        self.ensure_level(caller, &target).await;
        let ask = Ask {
            caller,
            target: &target,
            method,
            params,
            changes,
            events,
        };
        let outcome = self.ask(ask).await;
        if let Ok(result) = &outcome {
            learn_links(Lease::of(&caller.container), &settings.name, result);
        }
        outcome
    }

    /// Whether the tools of a server are known as they are by now.
    fn has_tools_of(self: &Arc<Self>, caller: &Arc<Caller>, settings: &ServerSettings) -> bool {
        let mounts = self.mounts.of(&caller.container);
        let mut mounts = mounts.iter();
        let mount = mounts.find(|mount| mount.settings().name == settings.name);
        let session = mount.and_then(|mount| self.session(caller, mount).now_or_never());
        let pooled = session.and_then(Result::ok);
        pooled.is_some_and(|pooled| pooled.catalog.has(List::Tools))
    }

    async fn find_tool(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        name: &str,
        wait: bool,
    ) -> Option<(Arc<ServerSettings>, Arc<Definition>)> {
        let view = self.tools(caller, wait).await;
        let tool = view.exposed.find(name)?;
        Some((Arc::clone(&tool.server), Arc::clone(&tool.definition)))
    }

    /// The definition of a tool by the name that the caller knows it by.
    pub async fn tool(
        self: Arc<Self>,
        caller: Arc<Caller>,
        name: Arc<str>,
    ) -> Option<Arc<Definition>> {
        let (_, definition) = match self.find_tool(&caller, &name, false).await {
            Some(found) => found,
            None => self.find_tool(&caller, &name, true).await?,
        };
        Some(definition)
    }

    pub(super) async fn get_prompt(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        method: &Arc<str>,
        params: Option<&RawValue>,
        events: &Events,
    ) -> Outcome {
        let exposed = name(params, "the name of the prompt is missing")?;
        let Some((settings, original)) = self.find_prompt(caller, &exposed).await else {
            let denial = self.why_unknown(caller, "prompt", &exposed).await;
            return Err(self.refuse(caller, method, None, denial));
        };
        let target = self
            .target(caller, method, &settings, Some(&original))
            .await?;
        let original = quote(&original);
        let changes = [("name", Some(&*original))];
        let ask = Ask {
            caller,
            target: &target,
            method,
            params,
            changes: &changes,
            events,
        };
        let outcome = self.ask(ask).await;
        if let Ok(result) = &outcome {
            learn_links(Lease::of(&caller.container), &settings.name, result);
        }
        outcome
    }

    /// The server of a prompt, and its own name for it.
    pub(super) async fn find_prompt(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        name: &str,
    ) -> Option<(Arc<ServerSettings>, Arc<str>)> {
        let mut view = self.prompts(caller, false).await;
        if view.exposed.find(name).is_none() {
            view = self.prompts(caller, true).await;
        }
        let prompt = view.exposed.find(name)?;
        Some((Arc::clone(&prompt.server), Arc::clone(&prompt.original)))
    }

    /// An open session with a server, to send it something.
    pub(super) async fn target(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        method: &Arc<str>,
        settings: &Arc<ServerSettings>,
        name: Option<&Arc<str>>,
    ) -> Result<Target, RpcError> {
        let opened = match self.mounts.find(&caller.container, &settings.name) {
            Some(mount) => self
                .session(caller, &mount)
                .await
                .map(|pooled| (mount, pooled)),
            None => Err(super::MountError::CannotStart(
                "it is mounted no more".to_owned(),
            )),
        };
        match opened {
            Ok((mount, pooled)) => Ok(Target {
                settings: mount.settings(),
                mount,
                pooled,
                name: name.cloned(),
                definition: None,
            }),
            Err(error) => {
                let denial = error.into_denial(&settings.name);
                Err(self.refuse(caller, method, Some(&settings.name), denial))
            }
        }
    }

    /// Why a name is not known: nobody has it, or the server that may have it does not answer.
    async fn why_unknown(&self, caller: &Arc<Caller>, what: &str, name: &str) -> Denial {
        for mount in self.mounts.of(&caller.container) {
            let settings = mount.settings();
            let may_have_it = name.starts_with(&*settings.prefix);
            let known = mount.known(&caller.container);
            let is_unread = match what {
                "tool" => known.tools.is_none(),
                _ => known.prompts.is_none(),
            };
            if may_have_it && is_unread {
                let failure = mount.health().failure;
                let failure = failure.unwrap_or_else(|| "it does not answer".to_owned());
                return Denial::new(
                    Code::ToolUnavailable,
                    format!("{}: {failure}", settings.name),
                )
                .with("server", &*settings.name);
            }
        }
        Denial::new(Code::ToolNotFound, format!("Unknown {what}: {name}")).with(what, name)
    }
}

/// The `name` of a request.
fn name(params: Option<&RawValue>, missing: &'static str) -> Result<String, RpcError> {
    let members = members(params)?;
    let name = members
        .text("name")
        .ok_or_else(|| invalid_params(missing))?;
    Ok(name.into_owned())
}
