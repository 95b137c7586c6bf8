//! Selects the override of a tool for a container, and applies it to the arguments of a call.

use std::cell::LazyCell;
use std::sync::Arc;

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::settings::{Injected, McpSettings, OverrideRule, ServerSettings};
use crate::contract::{Annotations, ContainerId};
use crate::raw_json::Node;

impl ServerSettings {
    /// Whether a container sees this server.
    pub fn is_for(&self, container: &ContainerId) -> bool {
        let id = container.as_str();
        self.containers.iter().any(|pattern| matches(pattern, id))
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

    /// Removes the hidden fields from the arguments and adds the defaults. `schema` is the tool's
    /// original `inputSchema`.
    pub(super) fn apply(&self, arguments: &mut Node<'_>, schema: Option<&str>) {
        // Parsed at most once: an agent can send thousands of spellings of a hidden field.
        let schema = LazyCell::new(|| Node::parse(schema?).ok());
        let is_declared = |name: &str| {
            let schema = schema.as_ref();
            schema.is_some_and(|schema| declares(schema, name))
        };
        for (field, _) in self.hidden_fields() {
            hide(arguments, field, &is_declared);
        }
        for (field, injected) in &self.defaults {
            let value = injected.value();
            if !field.contains('.') || is_declared(field) {
                set(arguments, &mut std::iter::once(&**field), &value);
            } else {
                set(arguments, &mut field.split('.'), &value);
            }
        }
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

impl Injected {
    fn value(&self) -> Node<'static> {
        match self {
            Self::Value(value) => value.into(),
            Self::Uuid => Node::string(&Uuid::new_v4().to_string()),
            Self::Now => {
                let now = OffsetDateTime::now_utc().format(&Rfc3339);
                // Formatting fails only after the year 9999.
                Node::string(&now.unwrap_or_default())
            }
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

/// Removes the field of this name. If the name has dots, also removes the value at the path that it
/// describes.
fn hide(arguments: &mut Node<'_>, field: &str, is_declared: &impl Fn(&str) -> bool) {
    let mut is_another = |key: &str| key != field && is_declared(key);
    remove(arguments, &[field], &mut is_another);
    if field.contains('.') {
        let path: Vec<_> = field.split('.').collect();
        remove(arguments, &path, &mut |_| false);
    }
}

/// Removes the value at a path, in each element of arrays on the path. Some servers compare names
/// case-insensitively, so every spelling of the path counts, except a last name for which
/// `is_another` returns true.
pub(super) fn remove(node: &mut Node<'_>, path: &[&str], is_another: &mut dyn FnMut(&str) -> bool) {
    match (node, path) {
        (Node::Array(elements), _) => {
            for element in elements {
                remove(element, path, is_another);
            }
        }
        (Node::Object(members), [last]) => {
            members.retain(|(key, _)| !same_name(key, last) || is_another(key));
        }
        (Node::Object(members), [first, rest @ ..]) => {
            for (key, value) in members {
                if same_name(key, first) {
                    remove(value, rest, is_another);
                }
            }
        }
        _ => {}
    }
}

/// Sets the value at a path, in each element of arrays on the path. Creates missing objects.
fn set<'p>(
    node: &mut Node<'_>,
    path: &mut (impl Iterator<Item = &'p str> + Clone),
    value: &Node<'static>,
) {
    let members = match node {
        Node::Object(members) => members,
        Node::Array(elements) => {
            for element in elements {
                set(element, &mut path.clone(), value);
            }
            return;
        }
        Node::Scalar(_) => return,
    };
    let Some(first) = path.next() else { return };
    let is_last = path.clone().next().is_none();
    let at = members.iter().position(|(key, _)| key == first);
    match at.and_then(|at| members.get_mut(at)) {
        Some((_, old)) if is_last => *old = value.clone(),
        Some((_, inner)) => set(inner, path, value),
        None if is_last => members.push((first.to_owned().into(), value.clone())),
        None => {
            let mut inner = Node::Object(Vec::new());
            set(&mut inner, path, value);
            members.push((first.to_owned().into(), inner));
        }
    }
}

/// Whether two names are equal to a server that compares them case-insensitively, as Go's
/// `encoding/json` does.
fn same_name(one: &str, other: &str) -> bool {
    if one.is_ascii() && other.is_ascii() {
        return one.eq_ignore_ascii_case(other);
    }
    let fold = |text: &str| text.to_uppercase().to_lowercase();
    fold(one) == fold(other)
}
