//! Reads `overrides`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::servers::Servers;
use super::{Injected, OverrideRule, OverrideRules, containers, short_name};
use crate::contract::Level;
use crate::contract::settings::{Fields, Setting};

/// The hints that an operator may set.
pub const HINTS: [&str; 4] = [
    "readOnlyHint",
    "destructiveHint",
    "idempotentHint",
    "openWorldHint",
];

struct Rename {
    to: Arc<str>,
    containers: Vec<Arc<str>>,
    tool: String,
}

/// Reads all overrides. Their keys are `server:tool`. An entry is a mapping, or a list of mappings
/// for different containers.
pub(super) fn read(fields: &Fields<'_>, servers: &Servers) -> OverrideRules {
    let mut overrides = OverrideRules::new();
    let mut renames = Vec::new();
    let entries = fields.find("overrides").and_then(|at| at.entries());
    for (key, at) in entries.into_iter().flatten() {
        let Some((server, tool)) = key.name.split_once(':') else {
            at.refuse_key(
                key,
                "must be server:tool, with the server's own name for the tool",
            );
            continue;
        };
        if !servers.contains_key(server) {
            at.refuse_key(
                key,
                format!("there is no server {server:?} under mcpServers"),
            );
            continue;
        }
        let rules = if at.is_mapping() {
            vec![rule(&at)]
        } else {
            at.list(|at| Some(rule(&at))).unwrap_or_default()
        };
        let rules: Vec<_> = rules.into_iter().flatten().collect();
        for rule in &rules {
            check_rename(&at, &key.name, rule, &mut renames);
        }
        let rules = rules.into_iter().map(Arc::new).collect();
        overrides.insert((server.into(), tool.into()), rules);
    }
    overrides
}

/// Reports an error if two tools are renamed to the same name with the same `containers`.
fn check_rename(at: &Setting<'_>, tool: &str, rule: &OverrideRule, renames: &mut Vec<Rename>) {
    let Some(exposed) = &rule.rename else {
        return;
    };
    let same = renames.iter().find(|other| {
        other.to == *exposed && other.containers == rule.containers && other.tool != tool
    });
    if let Some(Rename { tool: other, .. }) = same {
        at.refuse(format!("{tool} and {other} are both renamed to {exposed}"));
    }
    renames.push(Rename {
        to: Arc::clone(exposed),
        containers: rule.containers.clone(),
        tool: tool.to_owned(),
    });
}

fn rule(at: &Setting<'_>) -> Option<OverrideRule> {
    let fields = at.fields()?;
    let annotations = annotations(&fields);
    Some(OverrideRule {
        containers: containers(&fields),
        rename: fields.optional("rename", |at| at.parse(short_name)),
        description: fields.optional("description", |at| at.text().map(Arc::from)),
        hide_fields: fields.list("hide_fields", |at| at.text().map(Arc::from)),
        defaults: defaults(&fields),
        open_world: annotations.get("openWorldHint").and_then(Value::as_bool),
        annotations,
        classification: fields.or("classification", Level::Public, |at| {
            at.parse(|text| Level::parse(text).ok_or("must be Public, Confidential or Secret"))
        }),
    })
}

fn annotations(fields: &Fields<'_>) -> Map<String, Value> {
    let fields = fields.section("annotations");
    let title = fields.optional("title", |at| at.text().map(Value::from));
    let title = title.map(|title| ("title".to_owned(), title));
    let hints = HINTS.into_iter().filter_map(|hint| {
        let said = fields.optional(hint, |at| at.boolean())?;
        Some((hint.to_owned(), said.into()))
    });
    title.into_iter().chain(hints).collect()
}

fn defaults(fields: &Fields<'_>) -> Vec<(Arc<str>, Injected)> {
    let entries = fields.find("defaults").and_then(|at| at.entries());
    let entries = entries.into_iter().flatten();
    let read = entries.filter_map(|(key, at)| {
        let value = match at.json()? {
            Value::String(text) if text == "uuid()" => Injected::Uuid,
            Value::String(text) if text == "now()" => Injected::Now,
            value => Injected::Value(value),
        };
        Some((key.name.as_str().into(), value))
    });
    read.collect()
}
