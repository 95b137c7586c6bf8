//! The sessions with one server, of one lease or shared by all.

use std::sync::{Arc, Weak};
use std::time::Duration;

use addons::contract::{Container, Denial};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use super::catalog::Catalog;
use super::known::Known;
use super::pooled::{Counted, MAX_CALLS, Pooled};
use super::ports::{Clients, Mounted, Origin};
use super::{Event, Events, List, MountError, MountSession, Opening, SessionKey, Version};
use crate::mcp::warnings::{Subject, warn};

/// The most sessions in the set of a lease. To open another one, the least recently used session
/// is closed that has been idle for `REPLACED_AFTER`. If there is none, the client uses a session
/// of other clients. The sets of shared servers have no limit, since they have few keys.
pub const MAX_SESSIONS: usize = 8;
/// How long a session must have been unused before it may make room for another one. Otherwise, a
/// client that changes its capabilities could start a process with each request.
const REPLACED_AFTER: Duration = Duration::from_secs(60);
/// Time limit for opening a session. Package runners such as `npx` first download the server.
const OPENING: Duration = Duration::from_secs(60);
/// How long requests under way may continue after a reload changed or removed their server.
const LAST_CALLS: Duration = Duration::from_secs(10);
/// When a session ends unexpectedly, the backoff is reset if the session lasted at least this long.
/// A shorter session counts as a failure.
const STABLE: Duration = Duration::from_secs(30);
/// The pause after the first failure. Each further failure doubles the pause, up to
/// [`Transport::longest_pause`](super::Transport::longest_pause).
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The sessions with one server, of one lease or shared by all leases, and the state that outlives
/// the sessions.
#[derive(Default)]
pub(super) struct SessionSet {
    slots: Mutex<Vec<Slot>>,
    backoff: Mutex<Backoff>,
    pub known: Arc<Mutex<Known>>,
}

/// A session that is open or being opened.
struct Slot {
    key: SessionKey,
    used: Instant,
    opened: watch::Receiver<Opened>,
}

/// The outcome of opening a session; `None` while it is being opened.
type Opened = Option<Result<Arc<Pooled>, MountError>>;

/// The last failure, and when to try again.
#[derive(Default)]
struct Backoff {
    failures: u32,
    last: Option<(MountError, Instant)>,
}

impl Backoff {
    fn failed(&mut self, error: MountError, longest_pause: Duration) {
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.last = Some((error, Instant::now() + pause.min(longest_pause)));
    }

    /// During the pause after a failure, fails with that failure.
    fn check(&self) -> Result<(), MountError> {
        match &self.last {
            Some((error, until)) if Instant::now() < *until => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl SessionSet {
    /// Returns the session with this key. If there is none, opens a session for `clients`, or
    /// returns one with another key if [`MAX_SESSIONS`] are in use. Unless `may_declare`, returns
    /// any session, or opens one with a fixed key. During the pause after a failure, opening fails
    /// with that failure.
    pub async fn session(
        self: &Arc<Self>,
        mount: &Arc<Mounted>,
        key: SessionKey,
        may_declare: bool,
        clients: impl FnOnce(SessionKey) -> Clients,
    ) -> Result<Arc<Pooled>, MountError> {
        let mut opened = self.find_or_open(mount, key, may_declare, clients)?;
        let outcome = opened.wait_for(Option::is_some).await;
        // Fails only if the task that opens the session panicked, or its runtime shut down.
        let outcome = outcome.ok().and_then(|outcome| outcome.clone());
        let aborted = || MountError::CannotStart("opening the session was aborted".to_owned());
        outcome.unwrap_or_else(|| Err(aborted()))
    }

    /// Whether a session is open or being opened.
    pub fn is_in_use(&self) -> bool {
        self.slots.lock().iter().any(Slot::is_usable)
    }

    fn find_or_open(
        self: &Arc<Self>,
        mount: &Arc<Mounted>,
        key: SessionKey,
        may_declare: bool,
        clients: impl FnOnce(SessionKey) -> Clients,
    ) -> Result<watch::Receiver<Opened>, MountError> {
        let mut slots = self.slots.lock();
        slots.retain(Slot::is_usable);
        let is_full = !mount.is_shared() && slots.len() >= MAX_SESSIONS;
        let replaced = is_full.then(|| unused(&slots)).flatten();
        let may_open = may_declare && (!is_full || replaced.is_some());
        let own = slots.iter().position(|slot| slot.key == key);
        let found = own.or_else(|| match may_open {
            true => None,
            false => stand_in(&slots, key.version),
        });
        if let Some(slot) = found.and_then(|at| slots.get_mut(at)) {
            slot.used = Instant::now();
            return Ok(slot.opened.clone());
        }
        if mount.retired.is_cancelled() {
            let why = "the server's settings were changed or removed; try again";
            return Err(MountError::CannotStart(why.to_owned()));
        }
        self.backoff.lock().check()?;
        if let Some(at) = replaced {
            slots.swap_remove(at).end();
        }
        let clients = clients(match may_declare {
            true => key,
            false => SessionKey::fixed(),
        });
        let (sender, opened) = watch::channel(None);
        slots.push(Slot {
            key: clients.key.clone(),
            used: Instant::now(),
            opened: opened.clone(),
        });
        let (set, mount) = (Arc::clone(self), Arc::clone(mount));
        let runtime = mount.common.runtime.clone();
        runtime.spawn(set.open(mount, clients, sender));
        Ok(opened)
    }

    /// Opens a session and serves it until it ends.
    async fn open(
        self: Arc<Self>,
        mount: Arc<Mounted>,
        clients: Clients,
        opened: watch::Sender<Opened>,
    ) {
        let publish = |outcome| opened.send_replace(Some(outcome));
        let Some(memory) = mount.memory(clients.container.as_ref()) else {
            publish(Err(MountError::Denied(Denial::internal())));
            return;
        };
        let (unsolicited, events) = Events::charged(memory);
        let session = match self.handshake(&mount, &clients, unsolicited.clone()).await {
            Ok(session) => session,
            Err(error) => {
                publish(Err(error));
                return;
            }
        };
        mount.record.opened();
        self.known.lock().described = Some(Arc::new(session.described().clone()));
        let calls = Arc::new(Semaphore::new(MAX_CALLS as usize));
        let counted: Arc<dyn MountSession> = Arc::new(Counted {
            session,
            calls: Arc::clone(&calls),
            mount: Arc::clone(&mount),
            by_lease: Mutex::default(),
        });
        let catalog = Catalog::new(&mount, &self.known, Arc::clone(&counted), &clients);
        let pooled = Pooled {
            session: Arc::clone(&counted),
            catalog: catalog.clone(),
            unsolicited,
            key: clients.key.clone(),
            mount: Arc::clone(&mount),
            calls: Arc::clone(&calls),
        };
        publish(Ok(Arc::new(pooled)));
        let began = Instant::now();
        let origin = Origin {
            mount: Arc::clone(&mount),
            container: clients.container,
            key: clients.key,
            session: Arc::clone(&counted),
        };
        let ending = tokio::select! {
            ending = wait_for_end(&origin, &*counted, &calls) => ending,
            never = relay_events(&origin, &catalog, events) => match never {},
        };
        counted.ended().cancel();
        self.ended(&mount, ending, began, counted.why_ended());
    }

    /// Opens a session. A failure is recorded and starts the backoff. Fails with
    /// [`MountError::Died`] and records nothing if one of these events comes first: the end of the
    /// lease, a reload that changes or removes the server, or the stop of the proxy.
    async fn handshake(
        &self,
        mount: &Mounted,
        clients: &Clients,
        unsolicited: Events,
    ) -> Result<Arc<dyn MountSession>, MountError> {
        let opening = Opening {
            container: clients.container.clone(),
            version: clients.key.version,
            capabilities: Arc::clone(&clients.key.capabilities),
            unsolicited,
        };
        let session = tokio::select! {
            session = timeout(OPENING, mount.transport.open(opening)) => session,
            () = lease_ended(clients.container.as_ref()) => {
                return Err(MountError::Died { exit: None });
            }
            () = mount.retired.cancelled() => return Err(MountError::Died { exit: None }),
        };
        session
            .unwrap_or(Err(MountError::TimedOut))
            .inspect_err(|error| {
                let server = &mount.settings().name;
                warn(server, Subject::Session, |left_out| {
                    tracing::warn!(%server, left_out, %error, "cannot open a session with the MCP server");
                });
                mount.record.failed(error);
                let longest_pause = mount.transport.longest_pause();
                self.backoff.lock().failed(error.clone(), longest_pause);
            })
    }

    /// Forgets the session, and records a failure if the server ended it.
    fn ended(&self, mount: &Mounted, ending: Ending, began: Instant, why: Option<String>) {
        self.slots.lock().retain(Slot::is_usable);
        let Ending::Unexpected = ending else {
            mount.record.ended(None);
            return;
        };
        let server = &mount.settings().name;
        let reason = why.as_deref().unwrap_or("the server's session ended");
        warn(server, Subject::Session, |left_out| {
            tracing::warn!(%server, left_out, reason, "the session with the MCP server ended");
        });
        mount.record.ended(Some(reason.to_owned()));
        let mut backoff = self.backoff.lock();
        if began.elapsed() >= STABLE {
            *backoff = Backoff::default();
        } else {
            let error = why.map_or(MountError::Died { exit: None }, MountError::CannotStart);
            backoff.failed(error, mount.transport.longest_pause());
        }
    }
}

impl Slot {
    /// Whether the session is open or being opened.
    fn is_usable(&self) -> bool {
        match &*self.opened.borrow() {
            Some(Ok(pooled)) => !pooled.session.ended().is_cancelled(),
            Some(Err(_)) => false,
            None => self.opened.has_changed().is_ok(),
        }
    }

    /// Whether the session is open, idle, and not referenced elsewhere.
    fn is_idle(&self) -> bool {
        match &*self.opened.borrow() {
            Some(Ok(pooled)) => pooled.is_idle() && Arc::strong_count(pooled) == 1,
            _ => false,
        }
    }

    fn end(self) {
        if let Some(Ok(pooled)) = &*self.opened.borrow() {
            pooled.calls.close();
            pooled.session.ended().cancel();
        }
    }
}

/// The least recently used session that has been idle for [`REPLACED_AFTER`].
fn unused(slots: &[Slot]) -> Option<usize> {
    let is_unused = |slot: &Slot| slot.is_idle() && slot.used.elapsed() >= REPLACED_AFTER;
    let unused = slots.iter().enumerate().filter(|(_, slot)| is_unused(slot));
    unused.min_by_key(|(_, slot)| slot.used).map(|(at, _)| at)
}

/// The session that a client without its own uses: the first one of its era, or else the first.
fn stand_in(slots: &[Slot], version: Version) -> Option<usize> {
    let of_era = |slot: &Slot| slot.key.version.era() == version.era();
    let found = slots.iter().position(of_era);
    found.or_else(|| (!slots.is_empty()).then_some(0))
}

/// Why a session ended.
enum Ending {
    /// The server or the connection to it ended.
    Unexpected,
    /// The lease ended, a reload changed or removed the server, the proxy stops, or the session
    /// made room for another one.
    Requested,
}

/// Waits until a session has ended or must end.
async fn wait_for_end(origin: &Origin, session: &dyn MountSession, calls: &Semaphore) -> Ending {
    let mount = &origin.mount;
    tokio::select! {
        // The other reasons come first: they may end the session too.
        biased;
        () = lease_ended(origin.container.as_ref()) => Ending::Requested,
        () = mount.stopped.cancelled() => Ending::Requested,
        () = mount.retired.cancelled() => {
            tokio::select! {
                // The semaphore is fair: later requests do not overtake this waiter.
                _last = timeout(LAST_CALLS, calls.acquire_many(MAX_CALLS)) => calls.close(),
                () = lease_ended(origin.container.as_ref()) => {}
                () = session.ended().cancelled() => {}
                () = mount.stopped.cancelled() => {}
            }
            Ending::Requested
        }
        () = session.ended().cancelled() => match calls.is_closed() {
            true => Ending::Requested,
            false => Ending::Unexpected,
        },
    }
}

async fn lease_ended(container: Option<&Arc<Container>>) {
    match container {
        Some(container) => container.ended().cancelled().await,
        None => std::future::pending().await,
    }
}

/// Relays the server's messages that belong to no request. A notification that a list changed goes
/// to the catalog, the others to [`Unsolicited`](super::Unsolicited).
async fn relay_events(
    origin: &Origin,
    catalog: &Catalog,
    mut events: mpsc::Receiver<Event>,
) -> std::convert::Infallible {
    while let Some(event) = events.recv().await {
        if let Event::Notification { method, .. } = &event
            && let Some(list) = List::of_notification(method)
        {
            catalog.changed(list);
            continue;
        }
        let taker = origin.mount.common.unsolicited.get();
        if let Some(taker) = taker.and_then(Weak::upgrade) {
            taker.take(origin, event).await;
        }
    }
    std::future::pending().await
}
