//! Keeps the subscriptions and the log level of sessions with servers in step with their clients,
//! and the `subscriptions/listen` stream of modern servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use addons::raw_json::Members;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::known_sessions::KnownSession;
use super::lease::Lease;
use super::params::{edit, quote};
use super::target::{Ask, Target};
use super::{Caller, ClientRequest, Core, Era, LogLevel, Mount, MountError, Pooled};

/// Time-out of a request that the gateway itself sends, such as a subscription.
const TELLING: Duration = Duration::from_secs(10);

impl Core {
    /// Returns an open session with a server. Sends the subscriptions and the log level of its
    /// clients in a new session, in the background.
    pub(super) async fn session(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
    ) -> Result<Arc<Pooled>, MountError> {
        let pooled = mount.session(caller).await?;
        let lease = Lease::of(&caller.container);
        let (known, is_new) = lease.sessions.get(caller, mount, &pooled);
        if is_new && lease.has_wishes(caller) {
            let (core, caller) = (Arc::clone(self), Arc::clone(caller));
            self.runtime
                .spawn(async move { core.tell(&known, &caller).await });
        }
        Ok(pooled)
    }

    /// The lowest severity of log messages that the client wants; `None` if it set none.
    pub(super) fn log_level(&self, caller: &Arc<Caller>) -> Option<LogLevel> {
        match caller.version.era() {
            Era::Modern => caller.log_level,
            Era::Legacy => Lease::of(&caller.container).wishes(caller).log_level(),
        }
    }

    /// After the delay `after`, sends changed subscriptions and levels in the sessions for clients
    /// with the caller's revision and capabilities. Opens sessions if there are subscriptions.
    pub(super) fn interest_changed(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        caller: &Arc<Caller>,
        after: Duration,
    ) {
        let (core, lease) = (Arc::clone(self), Arc::clone(lease));
        // A copy, since the task must not keep a disconnected client's session alive.
        let caller = Arc::new(caller.like());
        self.runtime.spawn(async move {
            sleep(after).await;
            let like = lease.like(&caller);
            if like.iter().any(|one| !one.uris().is_empty()) {
                // A subscription needs an open session.
                for mount in core.mounts.of(&caller.container) {
                    let opened = timeout(TELLING, core.session(&caller, &mount)).await;
                    drop(opened);
                }
            }
            for (known, _) in lease.sessions.open(&caller) {
                core.tell(&known, &caller).await;
            }
        });
    }

    /// Sends the changed level in the open sessions of a client, after it set its log level.
    pub(super) async fn level_changed(self: &Arc<Self>, caller: &Arc<Caller>) {
        let lease = Lease::of(&caller.container);
        for (known, _) in lease.sessions.open(caller) {
            self.tell(&known, caller).await;
        }
    }

    /// Compares the subscriptions and the level that the clients of a session want with those that
    /// its server has, and sends the changes to the server.
    async fn tell(self: &Arc<Self>, known: &Arc<KnownSession>, caller: &Arc<Caller>) {
        let (Some(pooled), Some(mount)) = (known.pooled(), known.mount.upgrade()) else {
            return;
        };
        let _telling = known.telling.lock().await;
        let lease = Lease::of(&caller.container);
        let like = lease.like(caller);
        let wishes = lease.all_wishes(caller);
        let mut all: BTreeSet<_> = like.iter().flat_map(|one| one.uris()).collect();
        all.extend(wishes.iter().flat_map(|wishes| wishes.uris()));
        let mut wanted = BTreeSet::new();
        for uri in all {
            let learned = lease
                .learned(&uri)
                .is_some_and(|server| *server == *mount.settings().name);
            if learned || pooled.catalog.owns(&uri).await.unwrap_or(false) {
                wanted.insert(uri);
            }
        }
        match pooled.session.version().era() {
            Era::Modern => {
                let followed = (!like.is_empty()).then_some(wanted);
                self.listen(known, &pooled, caller, followed);
            }
            Era::Legacy => {
                let level = wishes.iter().filter_map(|wishes| wishes.log_level()).min();
                let target = Target::of_session(&mount, &pooled);
                self.tell_level(known, &target, caller, level).await;
                self.tell_uris(known, &target, caller, &wanted).await;
            }
        }
    }

    /// Sends `logging/setLevel` if the level changed.
    async fn tell_level(
        self: &Arc<Self>,
        known: &KnownSession,
        target: &Target,
        caller: &Arc<Caller>,
        level: Option<LogLevel>,
    ) {
        let Some(level) = level.filter(|level| *known.level.lock() != Some(*level)) else {
            return;
        };
        let capabilities = Members::read(&target.pooled.session.described().capabilities);
        if !capabilities.is_ok_and(|has| has.get("logging").is_some()) {
            return;
        }
        let quoted = quote(level.as_str());
        if self
            .say(target, caller, "logging/setLevel", ("level", &quoted))
            .await
        {
            *known.level.lock() = Some(level);
        }
    }

    /// Sends `logging/setLevel` to a legacy server before a modern client's request, if the client
    /// wants lower severities than the server sends.
    pub(super) async fn ensure_level(self: &Arc<Self>, caller: &Arc<Caller>, target: &Target) {
        let Some(level) = caller.log_level else {
            return;
        };
        if target.pooled.session.version().era() == Era::Modern {
            return;
        }
        let lease = Lease::of(&caller.container);
        let (known, _) = lease.sessions.get(caller, &target.mount, &target.pooled);
        let has_it = known.level.lock().is_some_and(|told| told <= level);
        if !has_it {
            let _telling = known.telling.lock().await;
            self.tell_level(&known, target, caller, Some(level)).await;
        }
    }

    async fn tell_uris(
        self: &Arc<Self>,
        known: &KnownSession,
        target: &Target,
        caller: &Arc<Caller>,
        wanted: &BTreeSet<Arc<str>>,
    ) {
        let told = known.subscribed.lock().clone();
        for uri in wanted.difference(&told) {
            let target = Target {
                name: Some(Arc::clone(uri)),
                ..target.clone()
            };
            if self
                .say(&target, caller, "resources/subscribe", ("uri", &quote(uri)))
                .await
            {
                known.subscribed.lock().insert(Arc::clone(uri));
            }
        }
        // Other containers may be subscribed to the resource in the same shared session.
        let left = told
            .difference(wanted)
            .filter(|_| !target.mount.is_shared());
        for uri in left {
            let target = Target {
                name: Some(Arc::clone(uri)),
                ..target.clone()
            };
            self.say(
                &target,
                caller,
                "resources/unsubscribe",
                ("uri", &quote(uri)),
            )
            .await;
            known.subscribed.lock().remove(uri);
        }
    }

    /// Sends a request of the gateway itself; returns whether it succeeded.
    async fn say(
        self: &Arc<Self>,
        target: &Target,
        caller: &Arc<Caller>,
        method: &str,
        member: (&str, &str),
    ) -> bool {
        let text = edit(&Members::default(), &[(member.0, Some(member.1))]);
        let Ok(params) = RawValue::from_string(text) else {
            return false;
        };
        let (events, _) = mpsc::channel(1);
        let request = ClientRequest {
            caller: Arc::clone(caller),
            method: method.into(),
            params: Some(params),
            trace: None,
            events,
        };
        let ask = Ask {
            request: &request,
            target,
            changes: &[],
        };
        let said = timeout(TELLING, self.ask_once(&ask)).await;
        matches!(said, Ok(Ok(Ok(_))))
    }
}
