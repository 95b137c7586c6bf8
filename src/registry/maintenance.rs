//! Ends leases when they expire, and keeps the view (the leases in memory) and the store in sync.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Containers, Unavailable};
use time::OffsetDateTime;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::Registry;
use super::store::StoreError;
use super::tracked_store::TrackedStore;

/// How often the store is probed and expired leases are ended.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How often the whole store is checked and read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);
/// If a round of maintenance takes longer than this, the registry is unavailable until the store is
/// next read successfully.
const HUNG_AFTER: Duration = Duration::from_secs(5);
/// How long another process may lock the store before the registry becomes unavailable.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Pruning deletes leases that expired at least this long ago, and only if the system clock has run
/// this long without a jump. Two kinds of leases are deleted without this wait: those that a flow
/// found expired, in the next round, and all expired leases when the server starts.
const KEPT_AFTER_EXPIRY: Duration = Duration::from_secs(60 * 60);
/// If the system clock and the monotonic clock advance by amounts that differ by more than this,
/// the system clock has jumped.
const CLOCK_JUMP: Duration = Duration::from_secs(10);

impl Registry {
    /// Opens the store, deletes expired leases, reads the others, and logs the result.
    pub(super) fn start(&self) {
        let mut tracked = self.tracked.lock();
        if let Err(error) = tracked.store.open() {
            return self.fail(&tracked, &error);
        }
        let pruned = tracked.store.prune(OffsetDateTime::now_utc());
        if self.refresh(&mut tracked, true).is_err() {
            return;
        }
        match pruned {
            Ok(pruned) => tracing::info!(pruned, live = self.count(), "registry loaded"),
            Err(error) => tracing::warn!(%error, "expired registrations could not be pruned"),
        }
    }

    /// Runs a round of maintenance every second until the shutdown.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = interval(PROBE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut clock = Clock::start();
        let mut reloaded = Instant::now();
        let stopped = shutdown.cancelled();
        tokio::pin!(stopped);
        loop {
            tokio::select! {
                () = &mut stopped => return,
                _ = ticks.tick() => {}
            }
            let whole = reloaded.elapsed() >= RELOAD_INTERVAL;
            if whole {
                reloaded = Instant::now();
            }
            let prune = clock.may_prune() && whole;
            let registry = Arc::clone(&self);
            let mut round = tokio::task::spawn_blocking(move || registry.round(whole, prune));
            let ended = match timeout(HUNG_AFTER, &mut round).await {
                Ok(ended) => ended,
                Err(_elapsed) => {
                    // The problem stays until a `refresh` succeeds, in this round or a later one.
                    self.set_problem("reading or writing the registry takes longer than 5 s");
                    round.await
                }
            };
            if let Err(error) = ended {
                tracing::error!(%error, "registry maintenance failed");
            }
        }
    }

    /// Ends expired leases, probes the store, updates the view and makes deferred writes. With
    /// `whole`, or if the registry is unavailable, reads the whole store. With `prune`, deletes
    /// leases that expired over an hour ago.
    fn round(&self, whole: bool, prune: bool) {
        let mut tracked = self.tracked.lock();
        let now = OffsetDateTime::now_utc();
        self.view.end_expired(now);
        self.view.ended.clean();
        let whole = whole || !self.available();
        if self.refresh(&mut tracked, whole).is_err() {
            return;
        }
        let failed = self.write_deferred(&mut tracked, now, prune).err();
        let failed = failed.map(|error| error.to_string());
        if let Some(error) = failed.as_deref().filter(|_| tracked.write_error != failed) {
            tracing::warn!(%error, "the registry could not be written");
        }
        tracked.write_error = failed;
    }

    /// Makes the deferred writes:
    ///
    /// - deletes leases that flows found expired,
    /// - inserts replacements for leases that ended too early
    ///   (`View::replacements_for_early_ends`),
    /// - writes changed security levels and abort latches,
    /// - with `prune`, deletes leases that expired over an hour ago.
    fn write_deferred(
        &self,
        tracked: &mut TrackedStore,
        now: OffsetDateTime,
        prune: bool,
    ) -> Result<(), StoreError> {
        let expired = std::mem::take(&mut *self.found_expired.lock());
        if !expired.is_empty()
            && let Err(error) = tracked.end(&expired)
        {
            self.found_expired.lock().extend(expired);
            return Err(error);
        }
        let mut again = self.view.replacements_for_early_ends(now);
        if !again.is_empty() {
            tracked.begin(&mut again)?;
            for lease in again {
                self.view.insert(lease);
            }
        }
        for container in self
            .view
            .filter(|container| !tracked.is_standing_stored(container))
        {
            tracked.set_standing(&container.id, container.standing())?;
        }
        if prune {
            let before = now - KEPT_AFTER_EXPIRY;
            let pruned = tracked.store.prune(before)?;
            for container in self.view.filter(|container| container.expired(before)) {
                self.view.remove(&container);
            }
            if pruned > 0 {
                tracing::info!(pruned, "expired registrations deleted");
            }
        }
        Ok(())
    }

    /// Reads the store if it changed or `whole` is set, and updates the view. Returns an error if
    /// the store cannot be read. The error makes the registry unavailable, except while another
    /// process has locked the store for less than [`LOCK_LIMIT`].
    pub(super) fn refresh(
        &self,
        tracked: &mut TrackedStore,
        whole: bool,
    ) -> Result<(), Unavailable> {
        let mut draft = self.view.draft();
        match tracked.sync(whole, |lease| draft.add(lease)) {
            Ok(was_read) => {
                tracked.busy_since = None;
                if was_read {
                    draft.apply();
                }
                if let Some(problem) = self.problem.replace(None) {
                    tracing::info!(was = %problem, "registry available again");
                }
                Ok(())
            }
            // The registry stays available for flows, since a restore on a slow disk may lock the
            // store for several seconds.
            Err(StoreError::Busy(_))
                if tracked
                    .busy_since
                    .get_or_insert_with(Instant::now)
                    .elapsed()
                    < LOCK_LIMIT =>
            {
                Err(Unavailable)
            }
            Err(error) => {
                self.fail(tracked, &error);
                Err(Unavailable)
            }
        }
    }

    /// Makes the registry unavailable because of an error of its store.
    fn fail(&self, tracked: &TrackedStore, error: &StoreError) {
        self.set_problem(&format!("{}: {error}", tracked.store));
    }

    /// Makes the registry unavailable. Logs a problem that differs from the previous one.
    fn set_problem(&self, problem: &str) {
        let before = self.problem.replace(Some(problem));
        if before.is_none_or(|before| *before != problem) {
            tracing::error!(
                problem,
                "registry unavailable: every flow is denied until it can be read"
            );
        }
    }
}

/// Compares the system clock with the monotonic clock, to decide whether leases may be pruned.
struct Clock {
    /// The system clock at the previous comparison.
    wall: OffsetDateTime,
    /// The monotonic clock at the previous comparison.
    steady: Instant,
    /// Leases may be pruned from this instant.
    trusted_from: Instant,
}

impl Clock {
    fn start() -> Self {
        let now = Instant::now();
        Self {
            wall: OffsetDateTime::now_utc(),
            steady: now,
            trusted_from: now + KEPT_AFTER_EXPIRY,
        }
    }

    /// Whether leases may be pruned: `false` for an hour after the start and after each jump of the
    /// system clock. So a wrong system clock prunes no lease if it is corrected within that hour.
    fn may_prune(&mut self) -> bool {
        self.note(OffsetDateTime::now_utc(), Instant::now())
    }

    fn note(&mut self, wall: OffsetDateTime, steady: Instant) -> bool {
        let passed = steady.duration_since(self.steady);
        if (wall - self.wall - passed).abs() > CLOCK_JUMP {
            tracing::warn!("the system clock jumped: no registration is pruned for an hour");
            self.trusted_from = steady + KEPT_AFTER_EXPIRY;
        }
        self.wall = wall;
        self.steady = steady;
        steady >= self.trusted_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_not_pruned_for_an_hour_after_the_start_and_after_each_clock_jump() {
        let mut clock = Clock::start();
        let (wall, steady) = (clock.wall, clock.steady);
        let hours = |count: u32| Duration::from_secs(3600) * count;
        assert!(!clock.note(wall, steady));
        assert!(clock.note(wall + hours(1), steady + hours(1)));
        assert!(!clock.note(wall + hours(25), steady + hours(1)));
        assert!(!clock.note(wall + hours(1), steady + hours(1)));
        assert!(clock.note(wall + hours(2), steady + hours(2)));
    }
}
