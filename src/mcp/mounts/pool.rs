//! All mounts of the configuration in force.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use addons::contract::Container;
use addons::mcp::ServerSettings;
use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::changes::{List, ListChanges, ListNews};
use super::mount::{LeaseMounts, Mount};
use super::ports::{Common, MountPorts, Unsolicited, system};
use super::{MessageMemory, MountHealth, has_no_network, refused_hosts};

/// The most processes that start at once because leases begin, of all containers. Each downloads and
/// loads its program, so that the start of a container with many servers would use all cores.
const MAX_EARLY_STARTS: usize = 8;
/// How long a process counts as starting, since nothing says when it has loaded its program.
const SETTLE: Duration = Duration::from_secs(2);

/// The settings of all servers, by name.
type Servers = BTreeMap<Arc<str>, Arc<ServerSettings>>;

/// The servers of `mcp.yaml`.
pub struct Mounts {
    common: Arc<Common>,
    mounts: ArcSwap<BTreeMap<Arc<str>, Arc<Mount>>>,
}

impl Mounts {
    /// Mounts these servers; opens no session yet. Sessions run on the calling runtime.
    pub fn new(ports: MountPorts, servers: &Servers) -> Self {
        let common = Arc::new(Common {
            ports,
            unsolicited: OnceLock::new(),
            news: Arc::<ListNews>::default(),
            early_starts: Arc::new(Semaphore::new(MAX_EARLY_STARTS)),
            runtime: Handle::current(),
        });
        let mount = |(name, server): (&Arc<str>, &Arc<ServerSettings>)| {
            (Arc::clone(name), Mount::new(server, &common))
        };
        let mounts: BTreeMap<_, _> = servers.iter().map(mount).collect();
        Self {
            mounts: ArcSwap::from_pointee(mounts),
            common,
        }
    }

    /// From now on, passes to `unsolicited` each message of a server that belongs to no request.
    /// Only the first call has an effect.
    pub fn follow(&self, unsolicited: Weak<dyn Unsolicited>) {
        // `Core::new` calls this once.
        let _ = self.common.unsolicited.set(unsolicited);
    }

    /// The mounts that a container sees, by name.
    pub fn of(&self, container: &Container) -> Vec<Arc<Mount>> {
        let mounts = self.mounts.load();
        let visible = mounts.values().filter(|mount| mount.is_for(container));
        visible.cloned().collect()
    }

    /// Starts the processes of the servers that a container sees, in the background. Called when the
    /// container's lease begins.
    pub fn lease_begins(&self, container: &Arc<Container>) {
        let (mounts, container) = (self.of(container), Arc::clone(container));
        let starts = Arc::clone(&self.common.early_starts);
        let runtime = self.common.runtime.clone();
        self.common.runtime.spawn(async move {
            for mount in mounts {
                let start = tokio::select! {
                    biased;
                    () = container.ended().cancelled() => return,
                    Ok(start) = Arc::clone(&starts).acquire_owned() => start,
                };
                let container = Arc::clone(&container);
                runtime.spawn(async move {
                    if mount.prepare(&container).await {
                        container.ended().run_until_cancelled(sleep(SETTLE)).await;
                    }
                    drop(start);
                });
            }
        });
    }

    /// The mount of a server, if the container sees it.
    pub fn find(&self, container: &Container, server: &str) -> Option<Arc<Mount>> {
        let mount = self.mounts.load().get(server).cloned();
        mount.filter(|mount| mount.is_for(container))
    }

    /// Marks a server's tools as outdated and notifies clients that tools have changed. Called when
    /// an operator accepted the definition of a tool of this server.
    pub fn accepted(&self, server: &str) {
        if let Some(mount) = self.mounts.load().get(server) {
            mount.server.acceptances.fetch_add(1, Ordering::Relaxed);
            self.common.news.changed(List::Tools);
        }
    }

    /// The memory that messages of a container are charged to; `None` after an internal error.
    pub fn memory(&self, container: &Arc<Container>) -> Option<Arc<dyn MessageMemory>> {
        (self.common.ports.memory)(system("gateway"), Some(container))
    }

    /// Subscribes to changes of the lists that a container sees.
    pub fn changes(&self, container: &Container) -> ListChanges {
        ListChanges::of(&LeaseMounts::of(container).news, &self.common.news)
    }

    /// Applies changed settings. A server keeps its sessions if nothing changed except `prefix`, the
    /// classifications and its place in the file. The sessions of other changed servers and of
    /// removed servers end once the requests under way are answered, or after 10 s.
    pub fn apply(&self, servers: &Servers) {
        let before = self.mounts.load_full();
        let mut now = BTreeMap::new();
        for (name, server) in servers {
            let kept = before.get(name).filter(|mount| mount.keeps(server));
            let mount = match kept {
                Some(mount) => {
                    mount.server.update(server);
                    Arc::clone(mount)
                }
                None => Mount::new(server, &self.common),
            };
            now.insert(Arc::clone(name), mount);
        }
        let stays = |mount: &&Arc<Mount>| {
            let same = now.get(&mount.settings().name);
            same.is_some_and(|same| Arc::ptr_eq(same, mount))
        };
        let retired: Vec<_> = before.values().filter(|m| !stays(m)).cloned().collect();
        self.mounts.store(Arc::new(now));
        for mount in retired {
            mount.server.retired.cancel();
        }
        self.common.news.all_changed();
    }

    /// The health of each mount, without those whose runtime is not implemented. With a container,
    /// only of the mounts that the container sees.
    pub fn health(&self, container: Option<&Container>) -> Vec<MountHealth> {
        let mounts = self.mounts.load();
        let seen = |mount: &&Arc<Mount>| {
            mount.is_implemented() && container.is_none_or(|container| mount.is_for(container))
        };
        let seen = mounts.values().filter(seen);
        let health = seen.map(|mount| {
            let settings = mount.settings();
            let refused = container.map(|of| refused_hosts(of, &settings));
            MountHealth {
                has_no_network: has_no_network(&settings),
                refused_hosts: refused.unwrap_or_default(),
                ..mount.health()
            }
        });
        health.collect()
    }

    /// Ends the sessions of the current mounts at once and opens no others. Waits at most `limit`
    /// until the processes and connections of all sessions are gone, including those of mounts that
    /// a reload replaced or removed.
    pub async fn stop(&self, limit: Duration) {
        for mount in self.mounts.load().values() {
            mount.server.stopped.cancel();
        }
        if timeout(limit, self.common.ports.transports.settled())
            .await
            .is_err()
        {
            tracing::warn!("MCP servers did not end in time");
        }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for mount in self.mounts.load().values() {
            mount.server.stopped.cancel();
        }
    }
}
