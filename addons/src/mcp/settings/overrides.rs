//! Reads `overrides`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::intercepted::BUILT_IN;
use super::super::overrides::matches;
use super::names::server_name;
use super::servers::Servers;
use super::{Injected, OverrideRule, OverrideRules, containers, level, short_name};
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

/// The keys with which the gateway changes a call or a definition that it sends.
const OF_SENT: [&str; 4] = ["rename", "description", "hide_fields", "defaults"];

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
        // Also found by the name as written under mcpServers.
        let name = server_name(server).unwrap_or_else(|_| server.into());
        let settings = match servers.get(&name) {
            Some(settings) => settings.as_ref(),
            None if BUILT_IN.contains(&server) => None,
            None => {
                at.refuse_key(
                    key,
                    format!("there is no server {server:?} under mcpServers"),
                );
                continue;
            }
        };
        if overrides.contains_key(&(Arc::clone(&name), tool.into())) {
            at.refuse_key(key, format!("there is another entry for {tool} of {name}"));
        }
        let of_server = settings.and_then(|server| server.classification);
        let of_server = of_server.unwrap_or_default();
        let read = |at: &Setting<'_>| match settings {
            Some(_) => rule(at, of_server),
            None => built_in(at, of_server),
        };
        let rules = if at.is_mapping() {
            vec![read(&at)]
        } else {
            at.list(|at| Some(read(&at))).unwrap_or_default()
        };
        let rules: Vec<_> = rules.into_iter().flatten().collect();
        for rule in &rules {
            check_rename(&at, &key.name, rule, &mut renames);
        }
        let rules = rules.into_iter().map(Arc::new).collect();
        overrides.insert((name, tool.into()), rules);
    }
    overrides
}

/// Reports an error if another tool has the same rename for a container that may match both rules.
fn check_rename(at: &Setting<'_>, tool: &str, rule: &OverrideRule, renames: &mut Vec<Rename>) {
    let Some(exposed) = &rule.rename else {
        return;
    };
    let same = renames.iter().find(|other| {
        let may_collide = other.to == *exposed && other.tool != tool;
        may_collide && may_match_the_same(&other.containers, &rule.containers)
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

/// Whether a container may match patterns of both lists. An empty list matches every container.
fn may_match_the_same(one: &[Arc<str>], other: &[Arc<str>]) -> bool {
    let overlaps = |pattern: &Arc<str>| other.iter().any(|other| overlap(pattern, other));
    one.is_empty() || other.is_empty() || one.iter().any(overlaps)
}

/// Whether any text can match both patterns.
fn overlap(one: &str, other: &str) -> bool {
    let (Some((start, _)), Some((other_start, _))) = (one.split_once('*'), other.split_once('*'))
    else {
        // A pattern without `*` matches only itself.
        return matches(one, other) || matches(other, one);
    };
    // Only the parts before the first `*` and after the last `*` can conflict: a common text may
    // contain the middle parts of one pattern after those of the other.
    let end = one.rsplit('*').next().unwrap_or_default();
    let other_end = other.rsplit('*').next().unwrap_or_default();
    (start.starts_with(other_start) || other_start.starts_with(start))
        && (end.ends_with(other_end) || other_end.ends_with(end))
}

/// Reads an entry. `of_server` is the classification of a tool for which the entry sets none.
fn rule(at: &Setting<'_>, of_server: Level) -> Option<OverrideRule> {
    let fields = at.fields()?;
    let annotations = annotations(&fields);
    Some(OverrideRule {
        containers: containers(&fields),
        rename: fields.optional("rename", rename),
        description: fields.optional("description", |at| at.text().map(Arc::from)),
        hide_fields: fields.list("hide_fields", |at| at.text().map(Arc::from)),
        defaults: defaults(&fields),
        open_world: annotations.get("openWorldHint").and_then(Value::as_bool),
        annotations,
        classification: fields.or("classification", of_server, level),
    })
}

/// Reads an entry of a tool that another program runs, with its own arguments: they must be judged
/// as they are.
fn built_in(at: &Setting<'_>, of_server: Level) -> Option<OverrideRule> {
    let fields = at.fields()?;
    for at in OF_SENT.into_iter().filter_map(|key| fields.find(key)) {
        at.refuse("another program runs this tool with its own arguments: only annotations, classification and containers count");
    }
    rule(at, of_server)
}

fn rename(at: Setting<'_>) -> Option<Arc<str>> {
    let name = at.parse(short_name)?;
    if name.contains('.') {
        let message = format!("rename: {name} has a dot, which APIs of models refuse in names");
        at.report().warn_at(at.place(), message);
    }
    Some(name)
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
            value if at.expanded().is_empty() => Injected::Value(value),
            value => Injected::Variable(value),
        };
        Some((key.name.as_str().into(), value))
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_pattern() -> impl Strategy<Value = String> {
        "[ab*]{1,6}"
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn patterns_overlap_if_a_text_matches_both(one in any_pattern(), other in any_pattern(), text in "[ab]{1,8}") {
            let matched = matches(&one, &text) && matches(&other, &text);
            prop_assert!(!matched || (overlap(&one, &other) && overlap(&other, &one)));
        }

        /// Builds a text that must match both patterns: the longer start, both middles, and the
        /// longer end.
        #[test]
        fn overlapping_patterns_have_a_common_text(one in any_pattern(), other in any_pattern()) {
            let parts = |pattern: &str| {
                let parts: Vec<String> = pattern.split('*').map(str::to_owned).collect();
                let middle = parts.get(1..parts.len().saturating_sub(1)).unwrap_or_default().concat();
                (parts.first().unwrap().clone(), middle, parts.last().unwrap().clone())
            };
            prop_assume!(one.contains('*') && other.contains('*') && overlap(&one, &other));
            let ((start, middle, end), (other_start, other_middle, other_end)) = (parts(&one), parts(&other));
            let longest = |one: String, other: String| if one.len() > other.len() { one } else { other };
            let text = [longest(start, other_start), middle, other_middle, longest(end, other_end)].concat();
            prop_assert!(matches(&one, &text) && matches(&other, &text), "{text}");
        }
    }
}
