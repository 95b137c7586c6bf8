//! Selects the override of a tool for a container.

use std::sync::Arc;

use serde_json::Value;

use super::settings::{
    Confine, McpSettings, OverrideRule, ServerKind, ServerSettings, StdioSettings,
};
use crate::contract::{Annotations, ContainerId};
use crate::json::Node;

impl ServerSettings {
    /// Whether a container sees this server.
    pub fn is_for(&self, container: &ContainerId) -> bool {
        let id = container.as_str();
        self.containers.iter().any(|pattern| matches(pattern, id))
    }

    /// Whether `openWorldHint: false` in the definitions of the server's tools counts. Where the
    /// server's process could send data out, only the operator can say that a tool does not.
    pub fn may_say_closed_world(&self) -> bool {
        match &self.kind {
            ServerKind::Stdio(process) => !process.has_way_out(),
            // The definitions of its tools are part of the gateway.
            ServerKind::CodingSidecar(_) | ServerKind::Policy(_) => true,
            ServerKind::Http(_) | ServerKind::E2b(_) => false,
        }
    }
}

impl StdioSettings {
    /// Whether the process can reach anything but the gateway: it is unconfined, or may reach hosts
    /// or Unix sockets below its visible paths.
    fn has_way_out(&self) -> bool {
        let sees_files = !self.read.is_empty() || !self.write.is_empty();
        self.confine == Confine::None || !self.hosts.is_empty() || (self.unix_sockets && sees_files)
    }
}

impl McpSettings {
    /// The override of a tool for a container: of the entries that match the container, the one
    /// with the most specific pattern; `None` if no entry matches.
    pub fn override_of(
        &self,
        server: &Arc<str>,
        tool: &Arc<str>,
        container: &ContainerId,
    ) -> Option<&Arc<OverrideRule>> {
        if self.overrides.is_empty() {
            return None;
        }
        let entries = self
            .overrides
            .get(&(Arc::clone(server), Arc::clone(tool)))?;
        let id = container.as_str();
        let matching = entries
            .iter()
            .filter_map(|entry| Some((entry.specificity(id)?, entry)));
        // Reversed, since `max_by_key` returns the last of equals, and the first entry counts.
        let best = matching.rev().max_by_key(|(specificity, _)| *specificity)?;
        Some(best.1)
    }
}

impl OverrideRule {
    /// How specific the entry is for a container. `None` if the entry has patterns and none of them
    /// matches. An entry without patterns has the lowest specificity, 0. For any other entry, the
    /// most specific matching pattern counts: the exact id if it is listed, otherwise the pattern
    /// with the most characters besides `*`.
    fn specificity(&self, id: &str) -> Option<usize> {
        if self.containers.is_empty() {
            return Some(0);
        }
        let matching = self.containers.iter().filter(|one| matches(one, id));
        matching
            .map(|pattern| match pattern.contains('*') {
                false => usize::MAX,
                true => pattern.len().saturating_sub(pattern.matches('*').count()),
            })
            .max()
            .map(|specificity| specificity.saturating_add(1))
    }

    /// The fields that a caller can neither see nor set, and whether each has a default.
    pub(super) fn hidden_fields(&self) -> impl Iterator<Item = (&str, bool)> {
        let defaults = self.defaults.iter().map(|(field, _)| (&**field, true));
        let has_default = |field: &str| self.defaults.iter().any(|(other, _)| **other == *field);
        let hidden = self.hide_fields.iter().map(|field| &**field);
        let hidden = hidden.filter(move |field| !has_default(field));
        hidden.map(|field| (field, false)).chain(defaults)
    }

    /// Whether the entry does not change the arguments.
    pub(super) fn leaves_arguments(&self) -> bool {
        self.hide_fields.is_empty() && self.defaults.is_empty()
    }

    /// The effective hints of a tool. If both the server and the operator set a hint, the stricter
    /// value counts.
    pub(super) fn annotations(&self, server: Annotations) -> Annotations {
        let said = |key: &str| self.annotations.get(key).and_then(Value::as_bool);
        let hint = |server, key, strict| stricter(server, said(key), strict);
        let open_world = self.open_world.or_else(|| said("openWorldHint"));
        Annotations {
            read_only: hint(server.read_only, "readOnlyHint", false),
            destructive: hint(server.destructive, "destructiveHint", true),
            idempotent: hint(server.idempotent, "idempotentHint", false),
            open_world: stricter(server.open_world, open_world, true),
        }
    }
}

fn stricter(server: Option<bool>, operator: Option<bool>, strict: bool) -> Option<bool> {
    match (server, operator) {
        (Some(server), Some(_)) if server == strict => Some(server),
        (server, operator) => operator.or(server),
    }
}

/// Whether a text matches a pattern in which `*` matches any text, also an empty one.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether the root of a schema declares a property of exactly this name.
pub(super) fn declares(schema: &Node<'_>, property: &str) -> bool {
    let properties = schema.get("properties");
    properties.is_some_and(|properties| properties.get(property).is_some())
}
