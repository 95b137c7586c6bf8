//! Rewrites a definition for a container.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::super::overrides::declares;
use super::super::schema::{HiddenField, without_fields};
use super::super::settings::{HINTS, OverrideRule};
use crate::contract::Definition;
use crate::json::{Members, Node, ObjectText, RawJsonError};

/// The longest definition of a tool that has an override, in bytes. A tool with an override and a
/// longer definition is left out.
const MAX_REWRITTEN: usize = 256 * 1024;

/// How a container's entry of `tools/list` differs from a definition.
#[derive(Debug)]
pub(super) enum Change {
    /// Not at all: there is no override, and the exposed name is the server's own name.
    Nothing,
    /// In its name: the place of the name's value in the definition.
    Name(Range<usize>),
    /// By the operator's override.
    Override(Arc<OverrideRule>),
}

impl Change {
    /// The change of a definition that is exposed under `name`.
    pub(super) fn of(
        definition: &Definition,
        name: &str,
        rule: Option<&Arc<OverrideRule>>,
    ) -> Result<Self, RewriteError> {
        match rule {
            Some(rule) => {
                rewrite(definition, name, rule)?;
                Ok(Self::Override(Arc::clone(rule)))
            }
            None if *name == *definition.name => Ok(Self::Nothing),
            None => {
                let members = Members::read(&definition.raw).map_err(RewriteError::Json)?;
                let place = members.place("name", &definition.raw);
                Ok(Self::Name(place.unwrap_or_default()))
            }
        }
    }

    /// The changed definition, as JSON text.
    pub(super) fn apply<'d>(&self, definition: &'d Definition, name: &str) -> Cow<'d, str> {
        let raw = definition.raw.get();
        match self {
            Self::Nothing => raw.into(),
            Self::Name(place) => with_name(raw, place, name).into(),
            // `Change::of` has rewritten it before.
            Self::Override(rule) => rewrite(definition, name, rule).unwrap_or_default().into(),
        }
    }
}

/// A text with a name in place of another JSON value.
pub(super) fn with_name(text: &str, place: &Range<usize>, name: &str) -> String {
    let before = text.get(..place.start).unwrap_or_default();
    let after = text.get(place.end..).unwrap_or_default();
    [before, &Node::string(name).to_json(), after].concat()
}

/// Rewrites a definition with its exposed name and the operator's override.
fn rewrite(
    definition: &Definition,
    name: &str,
    rule: &OverrideRule,
) -> Result<String, RewriteError> {
    let members = Members::read(&definition.raw).map_err(RewriteError::Json)?;
    let mut changes: Vec<(&str, String)> = vec![("name", Node::string(name).to_json())];
    if definition.raw.get().len() > MAX_REWRITTEN {
        return Err(RewriteError::TooLarge);
    }
    if let Some(description) = &rule.description {
        changes.push(("description", Node::string(description).to_json()));
    }
    let schema = members.get("inputSchema");
    if let Some(schema) = schema.filter(|_| !rule.leaves_arguments()) {
        let schema = expose_schema(schema, rule).map_err(RewriteError::Json)?;
        changes.push(("inputSchema", schema));
    }
    let annotations = members.get("annotations");
    if let Some(annotations) = expose_annotations(annotations, definition, rule) {
        changes.push(("annotations", annotations));
    }
    Ok(edited(&members, changes))
}

/// The object after `changes`. A change replaces the member with the same key. If there is no such
/// member, the change is added as a new one.
fn edited(object: &Members<'_>, mut changes: Vec<(&str, String)>) -> String {
    let mut edited = ObjectText::default();
    for (key, value) in object.iter() {
        match changes.iter().position(|(changed, _)| *changed == key) {
            Some(at) => edited.member(key, &changes.remove(at).1),
            None => edited.member(key, value),
        }
    }
    for (key, added) in changes {
        edited.member(key, &added);
    }
    edited.end()
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RewriteError {
    #[error("{0}")]
    Json(RawJsonError),
    #[error("its definition has more than {MAX_REWRITTEN} bytes")]
    TooLarge,
}

fn expose_schema(schema: &str, rule: &OverrideRule) -> Result<String, RawJsonError> {
    let schema = Node::parse(schema)?;
    let paths = rule.hidden_fields().map(|(field, has_default)| {
        let is_path = field.contains('.') && !declares(&schema, field);
        let path: Vec<&str> = match is_path {
            true => field.split('.').collect(),
            false => vec![field],
        };
        (path, has_default)
    });
    let paths: Vec<_> = paths.collect();
    let fields: Vec<_> = paths
        .iter()
        .map(|(path, has_default)| HiddenField {
            path,
            has_default: *has_default,
        })
        .collect();
    Ok(without_fields(schema, &fields).to_json())
}

/// Returns the annotations with the operator's override applied; `None` if the override sets no
/// annotation. If the server and the override set the same hint, the stricter value counts.
fn expose_annotations(
    annotations: Option<&str>,
    definition: &Definition,
    rule: &OverrideRule,
) -> Option<String> {
    if rule.annotations.is_empty() && rule.open_world.is_none() {
        return None;
    }
    let hints = rule.annotations(definition.annotations);
    let hints = HINTS.into_iter().zip([
        hints.read_only,
        hints.destructive,
        hints.idempotent,
        hints.open_world,
    ]);
    let hints = hints.filter_map(|(key, hint)| Some((key, hint?.to_string())));
    let others = rule.annotations.iter();
    let others = others.filter(|(key, _)| !HINTS.contains(&key.as_str()));
    let changes = others.map(|(key, value)| (key.as_str(), value.to_string()));
    let own = annotations.and_then(|json| Members::parse(json).ok());
    Some(edited(
        &own.unwrap_or_default(),
        changes.chain(hints).collect(),
    ))
}
