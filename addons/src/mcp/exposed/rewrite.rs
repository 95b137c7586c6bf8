//! Rewrites a definition for a container.

use std::sync::Arc;

use super::super::overrides::declares;
use super::super::schema::{HiddenField, without_fields};
use super::super::settings::{HINTS, OverrideRule};
use crate::contract::Definition;
use crate::raw_json::{Members, Node, ObjectText, RawJsonError};

/// The longest definition of a tool that has an override, in bytes. A tool with an override and a
/// longer definition is left out.
const MAX_REWRITTEN: usize = 256 * 1024;

/// Rewrites a definition with its exposed name and the operator's override. `None` if there is no
/// override and the exposed name is the server's own name for the tool.
pub(super) fn rewrite(
    definition: &Definition,
    name: &str,
    rule: Option<&Arc<OverrideRule>>,
) -> Result<Option<String>, RewriteError> {
    if rule.is_none() && *name == *definition.name {
        return Ok(None);
    }
    let members = Members::read(&definition.raw).map_err(RewriteError::Json)?;
    let mut changes: Vec<(&str, String)> = vec![("name", Node::string(name).to_json())];
    if let Some(rule) = rule {
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
    }
    Ok(Some(edited(&members, changes)))
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
