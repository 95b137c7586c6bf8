//! Tools and prompts of all servers under their exposed names, as clients with one revision and one
//! set of capabilities see them.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use addons::contract::{Definition, Level};
use addons::mcp::{Exposed, ExposedPrompts, McpSettings, ServerSettings};
use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::super::warnings::{Subject, warn};
use super::{Caller, Entry, List, Version};

/// The lists that the clients of a lease with the same revision and capabilities see.
pub(super) struct View {
    version: Version,
    capabilities: Arc<RawValue>,
    tools: Mutex<Option<Arc<ToolView>>>,
    prompts: Mutex<Option<Arc<PromptView>>>,
    /// Of the tools, prompts and resources.
    hashes: Mutex<[Hashes; 3]>,
}

/// Hashes of one list.
#[derive(Default)]
struct Hashes {
    /// When it was last compared.
    compared: Option<u64>,
    /// In an answer that left out entries of a server. The client may attach only when the server
    /// has become ready.
    told: Option<u64>,
}

/// A server's settings with one of its lists; `None` if the list is not known.
pub(super) type Listed<T> = (Arc<ServerSettings>, Option<Arc<T>>);

/// The tools that clients see.
pub(super) struct ToolView {
    inputs: Inputs<[Arc<Definition>]>,
    level: Level,
    pub exposed: Exposed,
}

impl ToolView {
    /// Whether the list of a server's tools is known.
    pub fn has_tools_of(&self, server: &str) -> bool {
        let mut lists = self.inputs.lists.iter();
        lists.any(|(settings, tools)| *settings.name == *server && tools.is_some())
    }
}

/// The prompts that clients see.
pub(super) struct PromptView {
    inputs: Inputs<[Entry]>,
    pub exposed: ExposedPrompts,
}

/// The values that a view was built from. They are compared by address. Since the view keeps them
/// alive, no other value can have the same address.
struct Inputs<T: ?Sized> {
    settings: Arc<McpSettings>,
    lists: Vec<Listed<T>>,
}

impl<T: ?Sized> Inputs<T> {
    fn are(&self, settings: &Arc<McpSettings>, lists: &[Listed<T>]) -> bool {
        let address = |list: &Option<Arc<T>>| list.as_ref().map(Arc::as_ptr);
        let is_same = |(one, other): (&Listed<T>, &Listed<T>)| {
            Arc::ptr_eq(&one.0, &other.0) && address(&one.1) == address(&other.1)
        };
        Arc::ptr_eq(&self.settings, settings)
            && self.lists.len() == lists.len()
            && self.lists.iter().zip(lists).all(is_same)
    }
}

impl View {
    pub fn of(caller: &Caller) -> Self {
        Self {
            version: caller.version,
            capabilities: Arc::clone(&caller.capabilities),
            tools: Mutex::default(),
            prompts: Mutex::default(),
            hashes: Mutex::default(),
        }
    }

    pub fn is_for(&self, caller: &Caller) -> bool {
        caller.is_like(self.version, &self.capabilities)
    }

    /// The tools under their exposed names; rebuilt only when an input changed. If another view of
    /// the lease has the same tools, shares them. `others` returns the views of the lease.
    pub fn tools(
        &self,
        settings: &Arc<McpSettings>,
        caller: &Caller,
        lists: Vec<Listed<[Arc<Definition>]>>,
        others: impl FnOnce() -> Vec<Arc<Self>>,
    ) -> Arc<ToolView> {
        let level = caller.container.level();
        let is_current = |kept: &ToolView| kept.level == level && kept.inputs.are(settings, &lists);
        let mut kept = self.tools.lock();
        if let Some(current) = kept.as_ref().filter(|kept| is_current(kept)) {
            return Arc::clone(current);
        }
        if let Some(equal) = find(others(), |view| &view.tools, is_current) {
            *kept = Some(Arc::clone(&equal));
            return equal;
        }
        let known = lists.iter().cloned();
        let known = known.filter_map(|(server, tools)| Some((server, tools?)));
        let exposed = Exposed::of(settings, &caller.container, &known.collect::<Vec<_>>());
        let before = kept.as_ref().map(|kept| kept.exposed.problems());
        for problem in exposed.problems() {
            if !before.is_some_and(|before| before.contains(problem)) {
                warn(&problem.server, Subject::Name, |left_out| {
                    let (container, text) = (&caller.container.id, &problem.text);
                    tracing::warn!(%container, left_out, "MCP: {text}");
                });
            }
        }
        let settings = Arc::clone(settings);
        let view = Arc::new(ToolView {
            inputs: Inputs { settings, lists },
            level,
            exposed,
        });
        *kept = Some(Arc::clone(&view));
        view
    }

    /// The prompts under their exposed names; rebuilt and shared as [`View::tools`].
    pub fn prompts(
        &self,
        settings: &Arc<McpSettings>,
        lists: Vec<Listed<[Entry]>>,
        others: impl FnOnce() -> Vec<Arc<Self>>,
    ) -> Arc<PromptView> {
        let is_current = |kept: &PromptView| kept.inputs.are(settings, &lists);
        let mut kept = self.prompts.lock();
        if let Some(current) = kept.as_ref().filter(|kept| is_current(kept)) {
            return Arc::clone(current);
        }
        if let Some(equal) = find(others(), |view| &view.prompts, is_current) {
            *kept = Some(Arc::clone(&equal));
            return equal;
        }
        let exposed = ExposedPrompts::of(lists.iter().filter_map(|(server, entries)| {
            let entries = entries.as_ref()?.iter();
            Some((server, entries.map(|entry| &entry.raw)))
        }));
        for problem in exposed.problems() {
            warn(&problem.server, Subject::Name, |left_out| {
                tracing::warn!(left_out, "MCP: {}", problem.text);
            });
        }
        let settings = Arc::clone(settings);
        let inputs = Inputs { settings, lists };
        let view = Arc::new(PromptView { inputs, exposed });
        *kept = Some(Arc::clone(&view));
        view
    }

    /// Forgets the comparisons, so that the next one finds no difference, except from what a client
    /// was [told](Self::told).
    pub fn forget(&self) {
        for hashes in self.hashes.lock().iter_mut() {
            hashes.compared = None;
        }
    }

    /// Records the hash of a list in an answer that left out entries of a server. Returns whether the
    /// list differs from a later one with which it was compared before.
    pub fn told(&self, list: List, hash: u64) -> bool {
        self.with(list, |hashes| {
            hashes.told = Some(hash);
            let known = hashes.compared.as_mut();
            known.is_some_and(|known| std::mem::replace(known, hash) != hash)
        })
    }

    /// Records the hash of a list. Returns whether the hash differs from the previous one; `false`
    /// the first time. For a client that was just attached, also whether it differs from what a
    /// client was [told](Self::told).
    pub fn differs(&self, list: List, hash: u64, is_attaching: bool) -> bool {
        self.with(list, |hashes| {
            let before = hashes.compared.replace(hash);
            // While they are equal, another client that was told the same may still attach.
            let is_other = |told: &mut u64| is_attaching && *told != hash;
            let told = hashes.told.take_if(is_other);
            told.is_some() || before.is_some_and(|before| before != hash)
        })
    }

    fn with(&self, list: List, act: impl FnOnce(&mut Hashes) -> bool) -> bool {
        let [tools, prompts, resources] = &mut *self.hashes.lock();
        act(match list {
            List::Tools => tools,
            List::Prompts => prompts,
            List::Resources => resources,
        })
    }
}

/// The part of the first view that is current. Skips a view that another thread is building: its
/// thread may wait for a lock of this one.
fn find<T>(
    views: Vec<Arc<View>>,
    part: fn(&View) -> &Mutex<Option<Arc<T>>>,
    is_current: impl Fn(&T) -> bool,
) -> Option<Arc<T>> {
    let parts = views
        .iter()
        .filter_map(|view| part(view).try_lock()?.clone());
    let mut current = parts.filter(|part| is_current(part));
    current.next()
}

/// The entries of resource lists. Of entries with the same key, only the first is returned.
pub(super) fn unique(lists: &[Listed<[Entry]>]) -> Vec<&str> {
    let mut seen = HashSet::new();
    let entries = lists.iter().filter_map(|(_, entries)| entries.as_ref());
    let entries = entries.flat_map(|entries| entries.iter());
    let first = entries.filter(|entry| seen.insert(&*entry.key));
    first.map(|entry| entry.raw.get()).collect()
}

/// Hash of a list's entries, to detect changes.
pub(super) fn hash(entries: impl Iterator<Item: AsRef<str>>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for entry in entries {
        hasher.write(entry.as_ref().as_bytes());
        hasher.write_u8(b',');
    }
    hasher.finish()
}
