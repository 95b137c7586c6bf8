//! `allowlist.yaml`: one list for HTTP and DNS.

use std::sync::Arc;

use addons::contract::{Entry, EntryMap, HostPattern, Level, Owned};

use super::decode::At;
use super::document::Document;

const DEFAULT_PORTS: [u16; 2] = [80, 443];

const LEVELS: [(&str, Level); 3] = [
    (Level::Public.as_str(), Level::Public),
    (Level::Confidential.as_str(), Level::Confidential),
    (Level::Secret.as_str(), Level::Secret),
];

/// Decodes the file; without one everything is denied.
pub fn read(document: &Document<'_>) -> EntryMap<Arc<Entry>> {
    let mut allowlist = EntryMap::default();
    let entries =
        document.decode(|fields| fields.list("domains", |at| Some((entry(&at, document)?, at))));
    for (entry, at) in entries {
        let entry = Arc::new(entry);
        let before = allowlist.insert(entry.pattern.clone(), entry.clone());
        if let Some(before) = before {
            let line = before.origin.line;
            at.refuse(format!(
                "{} is on the list already, in line {line}",
                entry.label
            ));
        }
    }
    if allowlist.is_empty() {
        document
            .report()
            .warn("no domain is allowed: every request is denied");
    }
    allowlist
}

fn entry(at: &At<'_>, document: &Document<'_>) -> Option<Entry> {
    let entry = |pattern: HostPattern| Entry {
        label: pattern.to_string().into(),
        pattern,
        ports: DEFAULT_PORTS.to_vec(),
        websocket: true,
        max_level: Level::Secret,
        origin: document.origin(at.place()),
        owned: Owned::default(),
    };
    if !at.is_mapping() {
        return at.parse(HostPattern::parse).map(entry);
    }
    at.mapping(|fields| {
        let pattern = fields
            .need("domain")
            .and_then(|at| at.parse(HostPattern::parse));
        let ports = fields.or("ports", DEFAULT_PORTS.to_vec(), |at| {
            at.filled_list(|at| at.number(1..=u16::MAX))
        });
        let websocket = fields.or("websocket", true, |at| at.boolean());
        let max_level = fields.or("max_level", Level::Secret, |at| at.one_of(&LEVELS));
        Some(Entry {
            ports,
            websocket,
            max_level,
            ..entry(pattern?)
        })
    })?
}
