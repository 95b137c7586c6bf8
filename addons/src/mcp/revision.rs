//! The revision of the rules under which a person is asked about a tool. An approval under other
//! rules is none.

use std::sync::Arc;

use serde_json::json;

use super::settings::{Injected, McpSettings, OnChange, OverrideRule};
use crate::contract::{ContainerId, Definition, QuestionKind, Topic};
use crate::json::{Node, ObjectText, canonical, sha256_hex};

/// The revision of the bundles for a method, in the order of the file.
#[must_use]
pub fn bundles_revision<'b>(bundles: impl Iterator<Item = (&'b str, [u8; 32])>) -> String {
    let mut object = ObjectText::default();
    for (id, revision) in bundles {
        object.text(id, &format!("{revision:02x?}"));
    }
    sha256_hex(&object.end())
}

impl McpSettings {
    /// The revision of the rules for a tool and a container: of the bundles and of the override.
    pub(super) fn rules_revision(
        &self,
        server: &Arc<str>,
        tool: &Arc<str>,
        container: &ContainerId,
        bundles: &str,
    ) -> String {
        let rule = self.override_of(server, tool, container);
        let rule = rule.map_or_else(String::new, |rule| rule.revision());
        sha256_hex(&[bundles, ".", &rule].concat())
    }
}

impl McpSettings {
    /// Whether a question about a call is still asked under these settings, and under the same
    /// rules: `bundles` is the [`bundles_revision`] for `tools/call`. The definition of the tool is
    /// compared when the call is judged again. Also whether a question about a definition is still
    /// asked. True for any other question.
    pub fn still_asks(&self, topic: &Topic, bundles: &str) -> bool {
        if topic.kind == QuestionKind::Definition {
            return self.on_definition_change == OnChange::Deny;
        }
        let (QuestionKind::Tool, Some(server)) = (topic.kind, &topic.server) else {
            return true;
        };
        let (server, tool) = (Arc::from(&**server), Arc::from(&*topic.subject));
        let rules = self.rules_revision(&server, &tool, &topic.container, bundles);
        topic.revision.split('.').next() == Some(&*rules)
    }
}

impl OverrideRule {
    /// A digest of all that the entry changes.
    fn revision(&self) -> String {
        let defaults = self
            .defaults
            .iter()
            .map(|(field, injected)| match injected {
                Injected::Value(value) | Injected::Variable(value) => {
                    json!([&**field, { "value": value }])
                }
                Injected::Uuid => json!([&**field, "uuid()"]),
                Injected::Now => json!([&**field, "now()"]),
            });
        let hidden = self.hide_fields.iter().map(|field| &**field);
        let changes = json!({
            "rename": self.rename.as_deref(),
            "description": self.description.as_deref(),
            "hide_fields": hidden.collect::<Vec<_>>(),
            "defaults": defaults.collect::<Vec<_>>(),
            "open_world": self.open_world,
            "annotations": self.annotations,
            "classification": self.classification.as_str(),
        });
        sha256_hex(&changes.to_string())
    }
}

impl Definition {
    /// A digest of the definition, independent of the order of members.
    pub(super) fn digest(&self) -> String {
        match Node::read(&self.raw) {
            Ok(node) => sha256_hex(&canonical(&node)),
            Err(_) => sha256_hex(self.raw.get()),
        }
    }
}
