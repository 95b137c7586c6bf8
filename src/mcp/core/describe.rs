//! Capabilities and instructions of the gateway for one client, combined from those of the servers
//! that the client sees.

use std::sync::Arc;

use addons::raw_json::{Members, ObjectText};
use serde_json::value::RawValue;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::super::tasks::TASKS_EXTENSION;
use super::lease::Lease;
use super::lists::LIST_PATIENCE;
use super::params::edit;
use super::{Caller, Core, Described, Mount};

/// The longest instructions, in bytes.
const MAX_INSTRUCTIONS: usize = 16 << 10;

/// Capabilities and instructions, as one client gets them.
#[derive(Clone, Debug)]
pub struct Description {
    /// `ServerCapabilities`.
    pub capabilities: Box<RawValue>,
    /// For the model.
    pub instructions: Option<String>,
}

/// Capabilities that at least one server has. A server whose capabilities are not known counts as
/// having lists of tools, prompts and resources.
#[derive(Default)]
struct Union {
    completions: bool,
    logging: bool,
    prompts: bool,
    resources: bool,
    subscribe: bool,
    tools: bool,
}

impl Core {
    /// Describes the servers that a client sees. Waits at most `LIST_PATIENCE` for servers that
    /// are being started.
    pub async fn describe(self: &Arc<Self>, caller: &Arc<Caller>) -> Description {
        let mounts = self.mounts.of(&caller.container);
        let described = mounts.iter().map(|mount| self.described(caller, mount));
        let described: Vec<_> = join_all(described).await;
        let mut union = Union::default();
        for described in &described {
            union.add(described.as_deref());
        }
        let sole = match &described[..] {
            [Some(sole)] => Some(sole),
            _ => None,
        };
        let instructions = match sole {
            Some(sole) => sole.instructions.clone(),
            None => {
                let named = mounts
                    .iter()
                    .zip(&described)
                    .filter_map(|(mount, described)| {
                        let text = described.as_ref()?.instructions.as_ref()?;
                        Some(format!("{}:\n{text}", mount.settings().name))
                    });
                let joined = named.collect::<Vec<_>>().join("\n\n");
                (!joined.is_empty()).then_some(joined)
            }
        };
        Description {
            capabilities: union.capabilities(sole.map(|sole| &*sole.capabilities)),
            instructions: instructions.map(cut),
        }
    }

    /// The description of one server; the last known one if the server does not answer, or `None`
    /// if it never answered.
    async fn described(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
    ) -> Option<Arc<Described>> {
        let lease = Lease::of(&caller.container);
        let server = Arc::clone(&mount.settings().name);
        let known = || mount.known(&caller.container).described;
        if lease.is_slow(&server) {
            return known();
        }
        match timeout(LIST_PATIENCE, self.session(caller, mount)).await {
            Ok(Ok(pooled)) => Some(Arc::new(pooled.session.described().clone())),
            _ => known(),
        }
    }
}

impl Union {
    fn add(&mut self, described: Option<&Described>) {
        let Some(described) = described else {
            self.tools = true;
            self.prompts = true;
            self.resources = true;
            return;
        };
        let Ok(has) = Members::read(&described.capabilities) else {
            return;
        };
        self.completions |= has.get("completions").is_some();
        self.logging |= has.get("logging").is_some();
        self.prompts |= has.get("prompts").is_some();
        self.tools |= has.get("tools").is_some();
        if let Some(resources) = has.get("resources") {
            self.resources = true;
            let resources = Members::parse(resources).unwrap_or_default();
            self.subscribe |= resources.get("subscribe") == Some("true");
        }
    }

    /// The capabilities, with the extensions of a sole server.
    fn capabilities(&self, sole: Option<&RawValue>) -> Box<RawValue> {
        let mut object = ObjectText::default();
        let sole = sole
            .and_then(|sole| Members::read(sole).ok())
            .unwrap_or_default();
        if let Some(experimental) = sole.get("experimental") {
            object.member("experimental", experimental);
        }
        for (has_it, key, value) in [
            (self.logging, "logging", "{}"),
            (self.completions, "completions", "{}"),
            (self.prompts, "prompts", "{\"listChanged\":true}"),
            (
                self.resources && self.subscribe,
                "resources",
                "{\"subscribe\":true,\"listChanged\":true}",
            ),
            (
                self.resources && !self.subscribe,
                "resources",
                "{\"listChanged\":true}",
            ),
            (self.tools, "tools", "{\"listChanged\":true}"),
        ] {
            if has_it {
                object.member(key, value);
            }
        }
        let extensions = sole
            .get("extensions")
            .and_then(|text| Members::parse(text).ok());
        if let Some(extensions) = extensions {
            let extensions = edit(&extensions, &[(TASKS_EXTENSION, None)]);
            object.member("extensions", &extensions);
        }
        // The object consists of JSON texts, so it always parses.
        RawValue::from_string(object.end()).unwrap_or_else(|_| RawValue::NULL.to_owned())
    }
}

/// Cuts the text to [`MAX_INSTRUCTIONS`].
fn cut(mut text: String) -> String {
    if text.len() > MAX_INSTRUCTIONS {
        let end = (0..=MAX_INSTRUCTIONS)
            .rev()
            .find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
    }
    text
}
