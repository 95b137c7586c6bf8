//! The lists that were last read from a server.

use std::collections::HashSet;
use std::sync::Arc;

use addons::contract::{Definition, HeldMemory};
use addons::json::Members;
use serde_json::value::RawValue;

use super::Described;
use super::uri_template::UriTemplate;

/// An entry of a list, as the server wrote it.
#[derive(Debug)]
pub struct Entry {
    /// The name of a prompt, the URI of a resource, or the URI template.
    pub key: Arc<str>,
    /// The whole entry.
    pub raw: Arc<RawValue>,
    _memory: HeldMemory,
}

/// The most templates of one server that URIs are matched against; further templates match no URI.
const MAX_TEMPLATES: usize = 200;
/// The most parts of these templates together, which bounds the time to match a URI.
const MAX_PARTS: usize = 1000;

/// The lists that were last read from a server, in the sessions of one lease or in the shared
/// sessions. The lists outlive the sessions. A list that was never read is `None`.
#[derive(Clone, Default)]
pub struct Known {
    /// The server's capabilities, name and instructions.
    pub described: Option<Arc<Described>>,
    /// Its tools.
    pub tools: Option<Arc<[Arc<Definition>]>>,
    /// Its prompts.
    pub prompts: Option<Arc<[Entry]>>,
    /// Its resources.
    pub resources: Option<Arc<[Entry]>>,
    /// Its templates of resources.
    pub templates: Option<Arc<[Entry]>>,
    /// An index of its resources and templates.
    pub index: Option<Arc<ResourceIndex>>,
}

/// An index of a server's resources and templates by URI.
#[derive(Default)]
pub struct ResourceIndex {
    uris: HashSet<Arc<str>>,
    templates: Vec<UriTemplate>,
    parts: usize,
    _memory: HeldMemory,
}

impl ResourceIndex {
    pub(super) fn of(resources: &[Entry], templates: &[Entry], memory: HeldMemory) -> Self {
        let mut parts = 0;
        let templates = templates
            .iter()
            .filter_map(|entry| UriTemplate::parse(&entry.key))
            .take(MAX_TEMPLATES)
            .take_while(|template| {
                parts += template.parts();
                parts <= MAX_PARTS
            });
        Self {
            templates: templates.collect(),
            uris: resources
                .iter()
                .map(|entry| Arc::clone(&entry.key))
                .collect(),
            parts,
            _memory: memory,
        }
    }

    /// Number of parts of the templates. The time of [`Self::has`] grows with it, and with the
    /// length of the URI.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Whether a resource is listed, or matches a listed template.
    pub fn has(&self, uri: &str) -> bool {
        self.uris.contains(uri) || self.templates.iter().any(|template| template.matches(uri))
    }
}

/// Reads entries. The key of an entry is the text of the member `member`. Leaves out entries
/// without a key or with the key of an earlier entry. Each entry holds the memory of the list.
pub(super) fn named(
    entries: Vec<Box<RawValue>>,
    member: &str,
    memory: &HeldMemory,
) -> Arc<[Entry]> {
    let mut seen = HashSet::new();
    let entries = entries.into_iter().filter_map(|raw| {
        let key: Arc<str> = Members::read(&raw).ok()?.text(member)?.into();
        seen.insert(Arc::clone(&key)).then(|| Entry {
            key,
            raw: raw.into(),
            _memory: memory.clone(),
        })
    });
    entries.collect()
}
