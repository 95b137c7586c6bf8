//! Publishes changes of lists. A change in a lease's session is published to that lease, a change
//! in a shared session to all leases.

use tokio::sync::watch;

/// A list whose changes a server announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Tools.
    Tools,
    /// Prompts.
    Prompts,
    /// Resources and their templates.
    Resources,
}

impl List {
    /// All lists.
    pub const ALL: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// The list whose change a notification announces; `None` for other notifications.
    pub fn of_notification(method: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|list| list.notification() == method)
    }

    /// The method of the notification that the list changed.
    pub const fn notification(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
        }
    }
}

/// Number of changes of each list, in the order of [`List::ALL`].
type Generations = [u64; 3];

/// Publishes changes of lists to their subscribers.
#[derive(Debug)]
pub(super) struct ListNews(watch::Sender<Generations>);

impl Default for ListNews {
    fn default() -> Self {
        Self(watch::Sender::new([0; 3]))
    }
}

impl ListNews {
    pub fn changed(&self, list: List) {
        self.0.send_modify(|generations| bump(generations, list));
    }

    pub fn all_changed(&self) {
        self.0.send_modify(|generations| {
            for list in List::ALL {
                bump(generations, list);
            }
        });
    }

    pub fn subscribe(&self) -> watch::Receiver<Generations> {
        self.0.subscribe()
    }
}

fn bump(generations: &mut Generations, list: List) {
    if let Some(generation) = generations.get_mut(list as usize) {
        *generation = generation.wrapping_add(1);
    }
}

/// Notifies one container of changes of its lists. A list counts as changed when a server announces
/// a change, a later reading differs, an operator accepts a tool's definition, or a reload applies
/// settings.
pub struct ListChanges {
    sources: [watch::Receiver<Generations>; 2],
    seen: [Generations; 2],
}

impl ListChanges {
    pub(super) fn of(own: &ListNews, shared: &ListNews) -> Self {
        let mut sources = [own.subscribe(), shared.subscribe()];
        let seen = sources.each_mut().map(|source| *source.borrow_and_update());
        Self { sources, seen }
    }

    /// Waits until lists may have changed, and returns them; never an empty `Vec`. Never completes
    /// once the mounts or the container are dropped. Cancellation-safe.
    pub async fn next(&mut self) -> Vec<List> {
        loop {
            let [own, shared] = &mut self.sources;
            let closed = tokio::select! {
                changed = own.changed() => changed.is_err(),
                changed = shared.changed() => changed.is_err(),
            };
            if closed {
                return std::future::pending().await;
            }
            let now = self
                .sources
                .each_mut()
                .map(|source| *source.borrow_and_update());
            let before = std::mem::replace(&mut self.seen, now);
            let differs = |list: &List| {
                let list = *list as usize;
                let mut both = before.iter().zip(&now);
                both.any(|(before, now)| before.get(list) != now.get(list))
            };
            let changed: Vec<_> = List::ALL.into_iter().filter(differs).collect();
            if !changed.is_empty() {
                return changed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_of_a_lease_and_of_shared_sessions_are_reported_once_each() {
        let (own, shared) = (ListNews::default(), ListNews::default());
        let mut changes = ListChanges::of(&own, &shared);
        own.changed(List::Tools);
        shared.changed(List::Resources);
        assert_eq!(changes.next().await, [List::Tools, List::Resources]);
        own.all_changed();
        assert_eq!(changes.next().await, List::ALL);
        let later = tokio::time::timeout(std::time::Duration::from_millis(20), changes.next());
        assert!(later.await.is_err());
    }
}
