//! Sends `list_changed` once for each real difference of a list.

use std::pin::pin;
use std::sync::Arc;

use super::lease::Lease;
use super::{Caller, Core, Event, List};

impl Core {
    /// Compares the lists of a lease with those that clients know; called after `caller` was
    /// attached. The first call for a lease starts a task, which compares the lists again after
    /// each change until the lease ends. Each later call compares them once, for clients with the
    /// caller's revision and capabilities.
    pub(super) fn watch(self: &Arc<Self>, lease: &Arc<Lease>, caller: &Arc<Caller>) {
        // The first client with this revision and these capabilities gets no notification of
        // earlier changes, except of servers that an answer left out.
        if lease.attached_like(caller).len() == 1 {
            lease.view(caller).forget();
        }
        let (core, lease) = (Arc::clone(self), Arc::clone(lease));
        let caller = Arc::clone(caller);
        let container = Arc::clone(&caller.container);
        if lease.changed.begin_watch() {
            let mut watched = self.watched.lock();
            watched.retain(|lease| lease.strong_count() > 0);
            watched.push(Arc::downgrade(&lease));
            drop(watched);
            let mut changes = self.mounts.changes(&container);
            self.runtime.spawn(async move {
                let mut level_changed = pin!(container.level_changed());
                let mut lists = List::ALL.to_vec();
                let mut is_attaching = true;
                loop {
                    tokio::select! {
                        () = core.compare(&lease, &lists, is_attaching) => {}
                        () = container.ended().cancelled() => break,
                    }
                    is_attaching = false;
                    lists = tokio::select! {
                        lists = changes.next() => lists,
                        lists = lease.changed.next() => lists,
                        () = &mut level_changed => {
                            // The future is replaced before the comparison: the new one also
                            // reports a change during the comparison.
                            level_changed.set(container.level_changed());
                            vec![List::Tools]
                        }
                        () = container.ended().cancelled() => break,
                    };
                }
                // Breaks reference cycles: the container owns `lease`, and the clients in `lease`
                // own the container.
                lease.attached.lock().clear();
                lease.sessions.clear();
            });
        } else {
            self.runtime.spawn(async move {
                core.compare_for(&lease, &caller, &List::ALL, true).await;
            });
        }
    }

    /// Sends `list_changed` for each list that differs, to the attached clients of the lease that
    /// want it.
    async fn compare(self: &Arc<Self>, lease: &Arc<Lease>, lists: &[List], is_attaching: bool) {
        let mut kinds: Vec<Arc<Caller>> = Vec::new();
        for attached in lease.attached.lock().iter() {
            let caller = &attached.caller;
            let is_same = |kind: &Arc<Caller>| kind.is_like(caller.version, &caller.capabilities);
            if !kinds.iter().any(is_same) {
                kinds.push(Arc::clone(caller));
            }
        }
        for caller in kinds {
            self.compare_for(lease, &caller, lists, is_attaching).await;
        }
    }

    /// Sends `list_changed` for each list that differs, to the attached clients with the caller's
    /// revision and capabilities that want it.
    async fn compare_for(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        caller: &Arc<Caller>,
        lists: &[List],
        is_attaching: bool,
    ) {
        let view = lease.view(caller);
        for list in lists {
            let hash = self.hash_of(caller, *list).await;
            if !view.differs(*list, hash, is_attaching) {
                continue;
            }
            for attached in lease.attached_like(caller) {
                if attached.wants(*list) {
                    attached.send(Event::Notification {
                        method: list.notification().into(),
                        params: None,
                    });
                }
            }
        }
    }
}
