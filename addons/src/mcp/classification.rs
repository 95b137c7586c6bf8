//! The classification of the data that a message asks for or carries: the results of a tool, a
//! resource or a prompt.

use std::sync::Arc;

use super::TOOLS_CALL;
use super::call::READ_IN_PLACE;
use super::client_text::carries_text;
use super::overrides::matches;
use super::settings::{McpSettings, ServerSettings};
use super::uri::{is_plain, looked_up};
use crate::contract::{ContainerId, Direction, Frame, FrameKind, Level};
use crate::json::{Members, Node};

impl McpSettings {
    /// The classification of the data in a message to or from a server: the result of its tool, its
    /// resource, its prompt, or the result of an unknown method. A response has that of its tool. A
    /// server's message to the client that belongs to no tool has the server's own, if it is set.
    pub(super) fn classification(
        &self,
        server: &Arc<str>,
        container: &ContainerId,
        frame: &Frame,
    ) -> Level {
        let of_tool = frame.definition.as_ref().map_or(Level::Public, |tool| {
            self.tool_classification(server, &tool.name, container)
        });
        match self.servers.get(server) {
            Some(server) if asks_for_data(frame) => {
                let default = self.default_classification(server, container);
                of_tool.max(named_classification(server, default, frame))
            }
            Some(server) if is_unattributed(frame) => server.classification.unwrap_or_default(),
            _ => of_tool,
        }
    }

    fn tool_classification(
        &self,
        server: &Arc<str>,
        tool: &Arc<str>,
        container: &ContainerId,
    ) -> Level {
        match self.override_of(server, tool, container) {
            Some(rule) => rule.classification,
            None => {
                let server = self.servers.get(server);
                server
                    .and_then(|server| server.classification)
                    .unwrap_or_default()
            }
        }
    }

    /// The classification of the resources and prompts that no pattern names: the server's, or the
    /// highest of its tools.
    fn default_classification(&self, server: &ServerSettings, container: &ContainerId) -> Level {
        if let Some(classification) = server.classification {
            return classification;
        }
        let tools = self
            .overrides
            .keys()
            .filter(|(name, _)| *name == server.name);
        let levels = tools.map(|(name, tool)| self.tool_classification(name, tool, container));
        levels.max().unwrap_or_default()
    }
}

/// Whether a message is a request for data other than a tool's result, or announces a change of a
/// resource.
fn asks_for_data(frame: &Frame) -> bool {
    match frame.direction {
        Direction::ToServer => {
            frame.kind == FrameKind::Request && &*frame.method != TOOLS_CALL && carries_text(frame)
        }
        Direction::ToClient => &*frame.method == "notifications/resources/updated",
    }
}

/// Whether a message is a server's request or notification that belongs to no tool.
fn is_unattributed(frame: &Frame) -> bool {
    frame.direction == Direction::ToClient
        && frame.kind != FrameKind::Response
        && frame.definition.is_none()
}

/// The classification of the resource or the prompt that a message names. The highest of the
/// server's data if the message cannot be read, or if its method is unknown.
fn named_classification(server: &ServerSettings, default: Level, frame: &Frame) -> Level {
    let (resources, prompts) = (&server.resources, &server.prompts);
    let levels = resources.iter().chain(prompts).map(|(_, level)| *level);
    let highest = levels.fold(default, Level::max);
    if highest == Level::Public {
        return highest;
    }
    let levels = [default, highest];
    let params = frame
        .params()
        .filter(|params| params.get().len() <= READ_IN_PLACE);
    let params = params
        .and_then(|params| Members::read(params).ok())
        .unwrap_or_default();
    let resource = |uri: Option<&str>| {
        let uri = uri.filter(|uri| is_plain(uri));
        uri.map_or(highest, |uri| level_of(resources, uri, looked_up, levels))
    };
    let prompt = |name: Option<&str>| {
        name.map_or(highest, |name| {
            level_of(prompts, name, str::to_lowercase, levels)
        })
    };
    match &*frame.method {
        "resources/read" | "resources/subscribe" | "notifications/resources/updated" => {
            resource(params.text("uri").as_deref())
        }
        "prompts/get" => prompt(params.text("name").as_deref()),
        "completion/complete" => {
            let reference = params.members("ref").ok().flatten().unwrap_or_default();
            match reference.text("type").as_deref() {
                Some("ref/prompt") => prompt(reference.text("name").as_deref()),
                _ => resource(reference.text("uri").as_deref()),
            }
        }
        "subscriptions/listen" => {
            let filter = params.members("notifications").ok().flatten();
            let uris = filter.unwrap_or_default().elements("resourceSubscriptions");
            let uris = uris.into_iter().map(|uri| {
                let uri = Node::parse(uri).ok();
                resource(uri.as_ref().and_then(Node::as_text).as_deref())
            });
            uris.max().unwrap_or(highest)
        }
        _ => highest,
    }
}

/// The highest level of the patterns that match a name; `default` if none does. A pattern that
/// matches only the name as some servers read it counts as `highest`. `read` returns what such
/// servers make of a name.
fn level_of(
    patterns: &[(Arc<str>, Level)],
    name: &str,
    read: fn(&str) -> String,
    [default, highest]: [Level; 2],
) -> Level {
    // With and without a slash at the end: `kb://hr` may be the directory of `kb://hr/*`.
    let file = read(name);
    let directory = format!("{file}/");
    let levels = patterns.iter().filter_map(|(pattern, level)| {
        if matches(pattern, name) {
            return Some(*level);
        }
        let pattern = read(pattern);
        (matches(&pattern, &file) || matches(&pattern, &directory)).then_some(highest)
    });
    levels.max().unwrap_or(default)
}
