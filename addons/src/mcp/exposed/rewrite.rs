//! Rewrites a definition for a container.

use std::sync::Arc;

use super::super::overrides::{declares, input_schema};
use super::super::schema::{HiddenField, without_fields};
use super::super::settings::OverrideRule;
use crate::contract::Definition;
use crate::raw_json::{Members, Node, ObjectText, RawJsonError};

/// The longest definition that an override may change, in bytes.
const MAX_REWRITTEN: usize = 256 * 1024;

/// Rewrites a definition with another name and the operator's override; `None` if it stays
/// unchanged.
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
        if let Some(schema) = input_schema(&members).filter(|_| !rule.leaves_arguments()) {
            let schema = expose_schema(schema, rule).map_err(RewriteError::Json)?;
            changes.push(("inputSchema", schema));
        }
        let annotations = members.get("annotations");
        if let Some(annotations) = expose_annotations(annotations, definition, rule) {
            changes.push(("annotations", annotations));
        }
    }
    let mut object = ObjectText::default();
    for (key, value) in members.iter() {
        let at = changes.iter().position(|(changed, _)| *changed == key);
        match at.map(|at| changes.swap_remove(at)) {
            Some((_, changed)) => object.member(key, &changed),
            None => object.member(key, value),
        }
    }
    for (key, added) in changes {
        object.member(key, &added);
    }
    Ok(Some(object.end()))
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RewriteError {
    #[error("{0}")]
    Json(RawJsonError),
    #[error("its definition has more than {MAX_REWRITTEN} bytes")]
    TooLarge,
}

fn expose_schema(schema: &str, rule: &OverrideRule) -> Result<String, RawJsonError> {
    let paths: Vec<_> = rule
        .hidden_fields()
        .flat_map(|(field, has_default)| {
            let is_path = field.contains('.') && !declares(Some(schema), field);
            let path: Vec<&str> = match is_path {
                true => field.split('.').collect(),
                false => vec![field],
            };
            [(path, has_default)]
        })
        .collect();
    let fields: Vec<_> = paths
        .iter()
        .map(|(path, has_default)| HiddenField {
            path,
            has_default: *has_default,
        })
        .collect();
    let schema = Node::parse(schema)?;
    Ok(without_fields(schema, &fields).to_json())
}

/// Returns the annotations with the operator's override applied; `None` if the override sets no
/// annotation. Of two values of a hint, the stricter one counts.
fn expose_annotations(
    annotations: Option<&str>,
    definition: &Definition,
    rule: &OverrideRule,
) -> Option<String> {
    if rule.annotations.is_empty() && rule.open_world.is_none() {
        return None;
    }
    let mut members: Vec<(String, String)> = Vec::new();
    let own = annotations.and_then(|json| Node::parse(json).ok());
    for (key, value) in own.as_ref().map_or(&[][..], Node::members) {
        members.push((key.to_string(), value.to_json()));
    }
    let mut put =
        |key: &str, value: String| match members.iter_mut().find(|(other, _)| other == key) {
            Some((_, old)) => *old = value,
            None => members.push((key.to_owned(), value)),
        };
    for (key, value) in &rule.annotations {
        put(key, value.to_string());
    }
    let hints = rule.annotations(definition.annotations);
    for (key, hint) in [
        ("readOnlyHint", hints.read_only),
        ("destructiveHint", hints.destructive),
        ("idempotentHint", hints.idempotent),
        ("openWorldHint", hints.open_world),
    ] {
        if let Some(hint) = hint {
            put(key, hint.to_string());
        }
    }
    let mut object = ObjectText::default();
    for (key, value) in &members {
        object.member(key, value);
    }
    Some(object.end())
}
