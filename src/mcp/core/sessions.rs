//! Keeps the subscriptions and the log level in each session with a server equal to those that the
//! clients of the session want. A legacy server gets a request for each change. For a modern
//! server, a `subscriptions/listen` stream carries the subscriptions, and each request carries the
//! log level.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Container, Denial};
use addons::json::Members;
use serde_json::json;
use serde_json::value::to_raw_value;
use tokio::time::{sleep, timeout};

use super::exchange::Attempt;
use super::known_sessions::KnownSession;
use super::lease::Lease;
use super::target::Target;
use super::{Caller, ClientRequest, Core, Era, Events, LogLevel, Mount, MountError, Pooled};

/// Time limit for a request that the gateway itself sends, such as a subscription. Opening a
/// session for subscriptions has the same limit.
const OWN_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

impl Core {
    /// Returns an open session with a server. In a new session, sends the subscriptions and the log
    /// level of the clients in the background.
    pub(super) async fn session(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        mount: &Arc<Mount>,
    ) -> Result<Arc<Pooled>, MountError> {
        let pooled = match self.is_excluded(caller, mount) {
            // What the client declares would reach the open world in the handshake.
            true => mount.undeclared_session(caller).await?,
            false => mount.session(caller).await?,
        };
        let lease = Lease::of(&caller.container);
        let (known, is_new) = lease.sessions.get(mount, &pooled);
        let has_clients = || {
            let is_served = |caller: &Caller| pooled.serves(caller);
            !lease.attached_if(is_served).is_empty() || !lease.preferences_if(is_served).is_empty()
        };
        if is_new && has_clients() {
            let (core, caller) = (Arc::clone(self), Arc::clone(caller));
            self.runtime
                .spawn(async move { core.update_session(&known, &caller).await });
        }
        Ok(pooled)
    }

    /// Whether nothing that a client chooses may reach a server outside tool calls: the container's
    /// level excludes the open world, and the server may reach it.
    fn is_excluded(&self, caller: &Caller, mount: &Arc<Mount>) -> bool {
        let container = &caller.container;
        if !container.level().excludes_open_world() {
            return false;
        }
        let (settings, server) = ((self.rules)().settings, mount.settings());
        let tools = mount.known(container).tools;
        let tools = tools.as_deref().unwrap_or_default();
        !server.may_say_closed_world()
            && !settings.is_closed_world(&server.name, &container.id, tools)
    }

    /// The lowest severity of log messages that the client wants; `None` if it set none.
    pub(super) fn log_level(&self, caller: &Arc<Caller>) -> Option<LogLevel> {
        match caller.version.era() {
            Era::Modern => caller.log_level,
            Era::Legacy => {
                let preferences = Lease::of(&caller.container).preferences(caller);
                *preferences.log_level.lock()
            }
        }
    }

    /// After the delay `after`, sends changed subscriptions and log levels in the sessions for
    /// clients with the caller's revision and capabilities. If there are subscriptions, opens a
    /// session with each server first.
    pub(super) fn interest_changed(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        caller: &Arc<Caller>,
        after: Duration,
    ) {
        let (core, lease) = (Arc::clone(self), Arc::clone(lease));
        // A copy, since the task must not keep a disconnected client's session alive.
        let caller = Arc::new(caller.without_session());
        self.runtime.spawn(async move {
            sleep(after).await;
            let clients = lease.attached_like(&caller);
            if clients.iter().any(|one| !one.uris().is_empty()) {
                // A subscription needs an open session.
                for mount in core.mounts.of(&caller.container) {
                    let opening = core.session(&caller, &mount);
                    drop(timeout(OWN_REQUEST_TIMEOUT, opening).await);
                }
            }
            core.update_sessions(&lease, &caller).await;
        });
    }

    /// Sends changed subscriptions and log levels in the open sessions for clients with the
    /// caller's revision and capabilities.
    pub(super) async fn update_sessions(self: &Arc<Self>, lease: &Lease, caller: &Arc<Caller>) {
        for (known, _) in lease.sessions.open(caller) {
            self.update_session(&known, caller).await;
        }
    }

    /// Makes the subscriptions and the log level in a session equal to those that the clients of
    /// the session want. Sends the server only the differences, and nothing to an
    /// [excluded](Self::is_excluded) server.
    async fn update_session(self: &Arc<Self>, known: &Arc<KnownSession>, caller: &Arc<Caller>) {
        let (Some(pooled), Some(mount)) = (known.pooled(), known.mount.upgrade()) else {
            return;
        };
        if self.is_excluded(caller, &mount) {
            return;
        }
        let _updating = known.updating.lock().await;
        let lease = Lease::of(&caller.container);
        let is_served = |caller: &Caller| pooled.serves(caller);
        let clients = lease.attached_if(is_served);
        let preferences = lease.preferences_if(is_served);
        let mut all: BTreeSet<_> = clients.iter().flat_map(|one| one.uris()).collect();
        all.extend(preferences.iter().flat_map(|one| one.uris()));
        let server = mount.settings();
        let is_learned = |uri: &Arc<str>| lease.learned(uri).is_some_and(|own| own == server.name);
        let (mut wanted, others) = all.into_iter().partition::<BTreeSet<_>, _>(is_learned);
        let listed = self.listed_of(known, &pooled, &caller.container, others);
        let Ok(mut listed) = listed.await else {
            // The next change of the subscriptions or of the list tries again.
            return;
        };
        // A message may have raised the level meanwhile.
        if self.is_excluded(caller, &mount) {
            return;
        }
        wanted.append(&mut listed);
        match pooled.session.version().era() {
            Era::Modern => {
                let filter = (!clients.is_empty()).then_some(wanted);
                self.listen(known, &pooled, caller, filter);
            }
            Era::Legacy => {
                let levels = preferences.iter().filter_map(|one| *one.log_level.lock());
                let target = Target::of_session(&mount, &pooled);
                self.send_level(known, &target, caller, levels.min()).await;
                self.send_subscriptions(known, &target, caller, &wanted)
                    .await;
            }
        }
    }

    /// Those of the URIs that the server lists, or that match its templates; none if its lists
    /// cannot be read. Denied as [`Core::find_uris`] is.
    async fn listed_of(
        self: &Arc<Self>,
        known: &KnownSession,
        pooled: &Pooled,
        container: &Arc<Container>,
        uris: BTreeSet<Arc<str>>,
    ) -> Result<BTreeSet<Arc<str>>, Denial> {
        if uris.is_empty() {
            return Ok(uris);
        }
        let Ok(index) = pooled.catalog.index().await else {
            return Ok(BTreeSet::new());
        };
        let new = known.compared.lock().new_of(&index, &uris);
        let found = self.find_uris(container, new.clone(), vec![index]).await?;
        let mut compared = known.compared.lock();
        for (uri, found) in new.into_iter().zip(found) {
            compared.add(uri, found.is_some());
        }
        Ok(uris.into_iter().filter(|uri| compared.has(uri)).collect())
    }

    /// Sends `logging/setLevel` if the level changed and the server has the capability `logging`.
    async fn send_level(
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
        let member = ("level", level.as_str());
        if self
            .send_own(target, caller, "logging/setLevel", member)
            .await
        {
            *known.level.lock() = Some(level);
        }
    }

    /// Sends `logging/setLevel` to a legacy server before a modern client's request with a log
    /// level, unless the session already has this level or a lower one.
    pub(super) async fn ensure_level(self: &Arc<Self>, caller: &Arc<Caller>, target: &Target) {
        let Some(level) = caller.log_level else {
            return;
        };
        if target.pooled.session.version().era() == Era::Modern
            || self.is_excluded(caller, &target.mount)
        {
            return;
        }
        let lease = Lease::of(&caller.container);
        let (known, _) = lease.sessions.get(&target.mount, &target.pooled);
        let is_sent = known.level.lock().is_some_and(|sent| sent <= level);
        if !is_sent {
            let _updating = known.updating.lock().await;
            if self.is_excluded(caller, &target.mount) {
                return;
            }
            self.send_level(&known, target, caller, Some(level)).await;
        }
    }

    /// Subscribes at a legacy server to the wanted resources. Unsubscribes from the others, unless
    /// the session is shared.
    async fn send_subscriptions(
        self: &Arc<Self>,
        known: &KnownSession,
        target: &Target,
        caller: &Arc<Caller>,
        wanted: &BTreeSet<Arc<str>>,
    ) {
        let sent = known.subscribed.lock().clone();
        let of_uri = |uri: &Arc<str>| Target {
            name: Some(Arc::clone(uri)),
            ..target.clone()
        };
        for uri in wanted.difference(&sent) {
            let (target, member) = (of_uri(uri), ("uri", &**uri));
            if self
                .send_own(&target, caller, "resources/subscribe", member)
                .await
            {
                known.subscribed.lock().insert(Arc::clone(uri));
            }
        }
        // Other containers may be subscribed to the resource in the same shared session, so it is
        // only forgotten.
        if target.mount.is_shared() {
            known.subscribed.lock().retain(|uri| wanted.contains(uri));
            return;
        }
        for uri in sent.difference(wanted) {
            if self.is_excluded(caller, &target.mount) {
                return;
            }
            let (target, member) = (of_uri(uri), ("uri", &**uri));
            self.send_own(&target, caller, "resources/unsubscribe", member)
                .await;
            known.subscribed.lock().remove(uri);
        }
    }

    /// Sends a request of the gateway itself, whose params have only this member. Returns whether
    /// the request succeeded.
    async fn send_own(
        self: &Arc<Self>,
        target: &Target,
        caller: &Arc<Caller>,
        method: &str,
        (key, value): (&str, &str),
    ) -> bool {
        let request = ClientRequest {
            caller: Arc::clone(caller),
            method: method.into(),
            params: to_raw_value(&json!({ key: value })).ok(),
            tool: None,
            trace: None,
            events: Events::none(),
        };
        let mut attempt = Attempt::default();
        let sending = self.forward_once(&request, target, &[], &mut attempt);
        let sent = timeout(OWN_REQUEST_TIMEOUT, sending).await;
        matches!(sent, Ok(Ok(Ok(_))))
    }
}
