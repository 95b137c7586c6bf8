//! The live grants of all leases in memory, so that a flow that was granted costs no look-up on
//! disk.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{ApprovalId, GrantId, Learned, LearnedHost, LeaseId, LiveGrant};
use arc_swap::ArcSwap;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::record::{Change, Grant, News, Scope};
use super::store::StoreError;
use super::watch::Seen;
use crate::registry::Registry;

/// How often grants are checked for the end of their time. The flows that rest on them end within
/// 5 s.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

type ByLease = HashMap<LeaseId, Arc<[LiveGrant]>>;

/// The grants that are not for one execution, by lease. While the ledger cannot be read, the grants
/// of the last read stay; their times end nevertheless.
pub struct LiveGrants {
    ledger: Arc<Ledger>,
    registry: Arc<Registry>,
    by_lease: ArcSwap<ByLease>,
    /// What people approved for every container.
    learned: ArcSwap<Learned>,
    /// The questions whose entries are not in force, even if a list has them. Held during a change
    /// of `learned`.
    refused: parking_lot::Mutex<HashSet<ApprovalId>>,
    /// Held during a change, so that an older read replaces no newer one.
    changing: Mutex<()>,
}

impl LiveGrants {
    pub fn new(ledger: Arc<Ledger>, registry: Arc<Registry>) -> Arc<Self> {
        Arc::new(Self {
            ledger,
            registry,
            by_lease: ArcSwap::default(),
            learned: ArcSwap::default(),
            refused: parking_lot::Mutex::default(),
            changing: Mutex::default(),
        })
    }

    /// The grants of a lease. Some may have ended within the last second.
    pub fn of(&self, lease: LeaseId) -> Arc<[LiveGrant]> {
        self.by_lease
            .load()
            .get(&lease)
            .cloned()
            .unwrap_or_default()
    }

    /// The hosts that people approved for every container.
    pub fn learned(&self) -> Arc<Learned> {
        self.learned.load_full()
    }

    /// Puts the hosts of the file into force, except those that are [refused](Self::refuse).
    pub fn learn(&self, learned: Arc<Learned>) {
        let mut refused = self.refused.lock();
        refused.retain(|id| learned.iter().any(|one| one.question == *id));
        self.put(&learned, &refused);
    }

    /// Ends the entry of this question. A list that still has it, for example of a reload that has
    /// read the file earlier, does not put it into force again. The next list without it ends that.
    pub fn refuse(&self, question: ApprovalId) {
        let mut refused = self.refused.lock();
        refused.insert(question);
        self.put(&self.learned(), &refused);
    }

    /// Lets the next list put the entry of this question into force.
    pub fn accept(&self, question: ApprovalId) {
        self.refused.lock().remove(&question);
    }

    /// Replaces what is in force. If a host is missing, all flows that rest on grants are judged
    /// again.
    fn put(&self, learned: &Learned, refused: &HashSet<ApprovalId>) {
        let kept = learned
            .iter()
            .filter(|one| !refused.contains(&one.question));
        let learned: Arc<Learned> = Arc::new(kept.cloned().collect());
        let before = self.learned.swap(Arc::clone(&learned));
        let stays = |one: &LearnedHost| learned.of(&one.host).contains(one);
        if !before.iter().all(stays) {
            for container in self.registry.in_memory() {
                container.grant_ended();
            }
        }
    }

    /// Reads all grants from the ledger.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let _changing = self.changing.lock().await;
        let grants = self.ledger.grants().await?;
        let mut by_lease: HashMap<LeaseId, Vec<LiveGrant>> = HashMap::new();
        for grant in grants.into_iter().filter(|grant| is_kept(grant.scope)) {
            let lease = grant.target.lease;
            by_lease.entry(lease).or_default().push(live(grant));
        }
        let by_lease = by_lease.into_iter();
        self.replace(
            by_lease
                .map(|(lease, grants)| (lease, grants.into()))
                .collect(),
        );
        Ok(())
    }

    /// Removes the grants that are over.
    async fn remove(&self, is_over: impl Fn(&LiveGrant) -> bool) {
        let any = |grants: &Arc<[LiveGrant]>| grants.iter().any(&is_over);
        if !self.by_lease.load().values().any(any) {
            return;
        }
        let _changing = self.changing.lock().await;
        let kept = |grants: &Arc<[LiveGrant]>| {
            let live = grants.iter().filter(|grant| !is_over(grant));
            live.cloned().collect()
        };
        let by_lease = self.by_lease.load();
        let by_lease = by_lease
            .iter()
            .map(|(lease, grants)| (*lease, kept(grants)));
        self.replace(by_lease.collect());
    }

    /// Puts grants into force, and lets the flows of each lease that has lost one be judged again.
    fn replace(&self, by_lease: ByLease) {
        let before = self.by_lease.swap(Arc::new(by_lease));
        let leases = before.iter();
        let lost = leases.filter(|(lease, grants)| {
            let ids: HashSet<GrantId> = self.of(**lease).iter().map(|grant| grant.id).collect();
            grants.iter().any(|grant| !ids.contains(&grant.id))
        });
        let lost: HashSet<LeaseId> = lost.map(|(lease, _)| *lease).collect();
        for container in self.registry.in_memory() {
            if lost.contains(&container.lease) {
                container.grant_ended();
            }
        }
    }

    /// Follows the ledger until the shutdown.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut changes = self.ledger.watch();
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_behind = true;
        loop {
            if is_behind {
                // The ledger logs its errors.
                is_behind = self.refresh().await.is_err();
            }
            tokio::select! {
                seen = changes.next() => match seen {
                    Some(seen) => {
                        // Before the grants are read again, which may fail.
                        if let Seen::Changed(Change { news: News::GrantEnded(id), .. }) = &seen {
                            self.remove(|grant| grant.id == *id).await;
                        }
                        is_behind |= changes_grants(&seen);
                    }
                    None => return,
                },
                _ = ticks.tick() => {
                    let now = OffsetDateTime::now_utc();
                    self.remove(|grant| !grant.is_live(now)).await;
                }
                () = shutdown.cancelled() => return,
            }
        }
    }
}

/// Whether grants of this scope are in memory. One for one execution is only used through the
/// ledger; one for everyone is in force through the configuration.
fn is_kept(scope: Scope) -> bool {
    matches!(scope, Scope::For(_) | Scope::Lease)
}

fn live(grant: Grant) -> LiveGrant {
    LiveGrant {
        id: grant.id,
        is_unasked: grant.approval.is_none(),
        kind: grant.target.kind,
        subject: grant.target.subject,
        level: grant.target.level,
        ends: grant.expires_at,
    }
}

fn changes_grants(seen: &Seen) -> bool {
    match seen {
        Seen::Behind => true,
        Seen::Changed(change) => matches!(
            change.news,
            News::Approved { once: false, .. } | News::Granted(_) | News::GrantEnded(_)
        ),
    }
}
