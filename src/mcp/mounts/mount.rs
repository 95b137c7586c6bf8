//! One server, and its sessions by lease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use addons::contract::Container;
use addons::mcp::{Scope, ServerSettings};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::changes::ListNews;
use super::health::HealthRecord;
use super::known::Known;
use super::pool::Common;
use super::sessions::{SessionSet, Wanted};
use super::{Caller, MountError, MountHealth, Pooled, Transport};

/// A server of `mcp.yaml` under one definition.
pub struct Mount {
    settings: ArcSwap<ServerSettings>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) common: Arc<Common>,
    pub(super) record: HealthRecord,
    /// Cancelled when the definition changed or was removed.
    pub(super) retired: CancellationToken,
    /// Cancelled when sessions must end at once.
    pub(super) stopped: CancellationToken,
    /// The sessions of all leases, for `scope: shared`.
    shared: Arc<SessionSet>,
    /// How often an operator accepted a definition.
    acceptances: AtomicU64,
}

impl Mount {
    pub(super) fn new(server: &Arc<ServerSettings>, common: &Arc<Common>) -> Arc<Self> {
        let stopped = CancellationToken::new();
        Arc::new(Self {
            settings: ArcSwap::new(Arc::clone(server)),
            transport: common.ports.transports.of(server),
            common: Arc::clone(common),
            record: HealthRecord::default(),
            retired: stopped.child_token(),
            stopped,
            shared: Arc::default(),
            acceptances: AtomicU64::new(0),
        })
    }

    /// The server's settings.
    pub fn settings(&self) -> Arc<ServerSettings> {
        self.settings.load_full()
    }

    /// Whether all containers share its sessions.
    pub fn is_shared(&self) -> bool {
        self.settings.load().scope == Scope::Shared
    }

    /// An open session for a client of this revision and these capabilities. Several that ask for
    /// one at once wait for the same. Dropping the future does not keep the session from being
    /// opened.
    pub async fn session(self: &Arc<Self>, caller: &Caller) -> Result<Arc<Pooled>, MountError> {
        let pooled = self.set_of(&caller.container).session(self, caller).await?;
        if self.is_shared() {
            pooled.catalog.ask_for(&caller.container);
        }
        Ok(pooled)
    }

    /// What was last read of the server for a container, whether or not a session is open.
    pub fn known(self: &Arc<Self>, container: &Container) -> Known {
        self.set_of(container).known.lock().clone()
    }

    /// How often an operator accepted a definition; lists that were read before are outdated.
    pub(super) fn acceptances(&self) -> u64 {
        self.acceptances.load(Ordering::Relaxed)
    }

    pub(super) fn accepted(&self) {
        self.acceptances.fetch_add(1, Ordering::Relaxed);
    }

    /// How the mount is doing.
    pub fn health(&self) -> MountHealth {
        self.record.read(&self.settings.load().name)
    }

    pub(super) fn is_for(&self, container: &Container) -> bool {
        let settings = self.settings.load();
        let mut patterns = settings.containers.iter();
        patterns.any(|pattern| fits(pattern, container.id.as_str()))
    }

    /// Whether the sessions of this definition serve another one: only names are different, and
    /// where the file says it.
    pub(super) fn keeps(&self, other: &ServerSettings) -> bool {
        let settings = self.settings.load();
        let same = ServerSettings {
            prefix: Arc::clone(&settings.prefix),
            place: settings.place.clone(),
            ..other.clone()
        };
        same == **settings
    }

    pub(super) fn update(&self, settings: &Arc<ServerSettings>) {
        self.settings.store(Arc::clone(settings));
    }

    /// Ends the sessions after the requests under way; no other is opened.
    pub(super) fn retire(&self) {
        self.retired.cancel();
    }

    /// Ends the sessions at once; no other is opened.
    pub(super) fn stop(&self) {
        self.stopped.cancel();
    }

    /// Tells of changed lists to the clients of a set.
    pub(super) fn news<'a>(&'a self, container: Option<&'a Container>) -> &'a ListNews {
        match container {
            Some(container) => &LeaseMounts::of(container).news,
            None => &self.common.news,
        }
    }

    /// What a session with the server is wanted for.
    pub(super) fn wanted(&self, caller: &Caller) -> Wanted {
        Wanted {
            container: (!self.is_shared()).then(|| Arc::clone(&caller.container)),
            asked_by: Arc::downgrade(&caller.container),
            version: caller.version,
            capabilities: Arc::clone(&caller.capabilities),
        }
    }

    fn set_of(self: &Arc<Self>, container: &Container) -> Arc<SessionSet> {
        match self.is_shared() {
            true => Arc::clone(&self.shared),
            false => LeaseMounts::of(container).set_of(self),
        }
    }
}

/// What a lease has of all mounts.
#[derive(Default)]
pub(super) struct LeaseMounts {
    sets: Mutex<Vec<(Weak<Mount>, Arc<SessionSet>)>>,
    /// Changes that concern this lease.
    pub news: ListNews,
}

impl LeaseMounts {
    pub fn of(container: &Container) -> &Self {
        container.state_or_init(Self::default)
    }

    fn set_of(&self, mount: &Arc<Mount>) -> Arc<SessionSet> {
        let mut sets = self.sets.lock();
        let is_same = |weak: &Weak<Mount>| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(mount));
        if let Some((_, set)) = sets.iter().find(|(weak, _)| is_same(weak)) {
            return Arc::clone(set);
        }
        // Mounts that a reload replaced.
        sets.retain(|(mount, _)| mount.strong_count() > 0);
        let set = Arc::new(SessionSet::default());
        sets.push((Arc::downgrade(mount), Arc::clone(&set)));
        set
    }
}

/// Whether a text is what a pattern says, in which `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = text.split_once(part) else {
            return false;
        };
        text = after;
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        each_row(
            [
                ("*", "web", true),
                ("agent-*", "agent-1", true),
                ("agent-*", "web", false),
                ("web", "web", true),
                ("web", "web1", false),
                ("a*b*c", "a1b2c", true),
                ("a*b*c", "a1c", false),
                ("a*a", "a", false),
                ("*-dev", "web-dev", true),
                ("*-dev", "web-devel", false),
            ],
            |(pattern, id, expected)| assert_eq!(fits(pattern, id), expected, "{pattern} {id}"),
        );
    }
}
