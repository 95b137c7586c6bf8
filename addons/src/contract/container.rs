//! A registered container and its lease.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;

use super::entry::{EntryMap, HostPattern};
use super::lease_id::LeaseId;
use super::level::{Level, Standing};
use super::type_map::TypeMap;

/// A container's id: 1 to 128 characters of `[A-Za-z0-9_.-]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(Arc<str>);

impl ContainerId {
    /// Parses an id; `None` if it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        let valid = (1..=128).contains(&text.len()) && text.bytes().all(fits);
        valid.then(|| Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Identifies a container's connections: by the peer's address, or by the container's own listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The peer's address; an IPv4-mapped IPv6 address is converted to IPv4.
    Address(IpAddr),
    /// The listener of the container with this id.
    Listener(ContainerId),
    /// The token of callers without a container, [`TOKEN_AGENT`].
    Token,
}

/// The id of the built-in container of callers that have only a token.
pub const TOKEN_AGENT: &str = "token-agent";

/// Whether a container pushes as a person or as a bot. This decides which refs it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    /// As a person, who may push to any branch, tag or note.
    User,
    /// As a bot, which may push only to refs that begin with one of `git.bot_branch_prefixes`.
    Bot,
}

impl AuthMode {
    /// `user` or `bot`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Bot => "bot",
        }
    }

    /// Parses `user` or `bot`; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::User, Self::Bot]
            .into_iter()
            .find(|mode| mode.as_str() == text)
    }
}

/// A repository that a container may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    /// `owner/name` as it was registered; compare with [`Repo::is`].
    pub name: Box<str>,
    /// The push limit of this repository in bytes. `None`: the limit in `git.push_limits` applies.
    pub max_receive_pack_bytes: Option<u64>,
}

impl Repo {
    /// Whether `name` (`owner/name`) is this repository, without regard to case.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// One lease of one container: its identity, its rights, and whether it has ended.
///
/// It owns the limiters, budgets and pools of the lease.
pub struct Container {
    /// The container's id.
    pub id: ContainerId,
    /// The lease's id. No two leases have the same id, not even two of the same container.
    pub lease: LeaseId,
    /// The source of its connections.
    pub source: Source,
    /// The repositories it may use.
    pub repos: Box<[Repo]>,
    /// Whether it pushes as a person or as a bot.
    pub auth_mode: AuthMode,
    /// When the lease began.
    pub created_at: OffsetDateTime,
    narrowing: Option<Box<Narrowing>>,
    expires_at: AtomicI64,
    level: AtomicU8,
    aborted: AtomicBool,
    over: AtomicBool,
    state: OnceLock<Box<LeaseState>>,
}

/// The patterns that narrow the allowlist, as they were registered and as a map for look-ups.
struct Narrowing {
    patterns: Box<[HostPattern]>,
    map: EntryMap<()>,
}

/// The state of a lease, allocated at its first use, since most containers are idle.
#[derive(Default)]
struct LeaseState {
    ended: CancellationToken,
    level_changed: Notify,
    values: TypeMap,
}

/// The data of a new lease.
#[derive(Clone, Debug)]
pub struct Registration {
    /// See [`Container::id`].
    pub id: ContainerId,
    /// See [`Container::lease`].
    pub lease: LeaseId,
    /// See [`Container::source`].
    pub source: Source,
    /// See [`Container::repos`].
    pub repos: Vec<Repo>,
    /// See [`Container::auth_mode`].
    pub auth_mode: AuthMode,
    /// See [`Container::created_at`].
    pub created_at: OffsetDateTime,
    /// When the lease expires.
    pub expires_at: OffsetDateTime,
    /// See [`Container::allowed_domains`].
    pub allowed_domains: Option<Vec<HostPattern>>,
    /// The security level and the abort latch with which the lease begins.
    pub standing: Standing,
}

impl Container {
    /// Begins a lease.
    #[must_use]
    pub fn new(registration: Registration) -> Self {
        let narrowing = registration.allowed_domains.map(|patterns| {
            let map = patterns.iter().map(|pattern| (pattern.clone(), ()));
            Box::new(Narrowing {
                map: map.collect(),
                patterns: patterns.into(),
            })
        });
        Self {
            id: registration.id,
            lease: registration.lease,
            source: registration.source,
            repos: registration.repos.into(),
            auth_mode: registration.auth_mode,
            created_at: registration.created_at,
            narrowing,
            expires_at: AtomicI64::new(unix_millis(registration.expires_at)),
            level: AtomicU8::new(registration.standing.level as u8),
            aborted: AtomicBool::new(registration.standing.aborted),
            over: AtomicBool::new(false),
            state: OnceLock::new(),
        }
    }

    /// When the lease expires.
    pub fn expires_at(&self) -> OffsetDateTime {
        let millis = self.expires_at.load(Ordering::Relaxed);
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// Changes the expiry of the lease.
    pub fn extend(&self, expires_at: OffsetDateTime) {
        self.expires_at
            .store(unix_millis(expires_at), Ordering::Relaxed);
    }

    /// Whether the lease has expired at `now`.
    pub fn expired(&self, now: OffsetDateTime) -> bool {
        unix_millis(now) >= self.expires_at.load(Ordering::Relaxed)
    }

    fn lease_state(&self) -> &LeaseState {
        self.state.get_or_init(Box::default)
    }

    /// Ends the lease and cancels [`Container::ended`].
    pub fn end(&self) {
        // Set first, so that a task woken by the token finds the lease ended.
        self.over.store(true, Ordering::Release);
        self.ended().cancel();
    }

    /// The token that is cancelled when the lease ends by deletion, replacement or expiry.
    pub fn ended(&self) -> &CancellationToken {
        &self.lease_state().ended
    }

    /// Whether the lease has ended. Unlike [`Container::ended`], it allocates nothing and takes no
    /// lock, so that every flow can check it.
    pub fn has_ended(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether flows under this lease may still begin: it has neither ended nor expired at `now`.
    pub fn is_live(&self, now: OffsetDateTime) -> bool {
        !self.has_ended() && !self.expired(now)
    }

    /// The patterns that narrow the allowlist for this container, as they were registered; `None`
    /// if the container may use the whole allowlist.
    pub fn allowed_domains(&self) -> Option<&[HostPattern]> {
        let narrowing = self.narrowing.as_ref();
        narrowing.map(|narrowing| &*narrowing.patterns)
    }

    /// Whether one of [`Container::allowed_domains`] matches the host; `true` for every host if the
    /// container may use the whole allowlist.
    pub fn allows(&self, host: &super::Host) -> bool {
        let narrowing = self.narrowing.as_ref();
        narrowing.is_none_or(|narrowing| narrowing.map.find(host).is_some())
    }

    /// The level of the most confidential data that the container may have read.
    pub fn level(&self) -> Level {
        match self.level.load(Ordering::Acquire) {
            0 => Level::Public,
            1 => Level::Confidential,
            _ => Level::Secret,
        }
    }

    /// Raises the level. Only [`Container::reset_standing`] lowers it.
    pub fn raise_level(&self, level: Level) {
        let before = self.level.fetch_max(level as u8, Ordering::AcqRel);
        if before < level as u8 {
            self.lease_state().level_changed.notify_waiters();
        }
    }

    /// A future that is ready once the level rises or is lowered after this call, or a grant of the
    /// lease ends, even if that happens before the future is first polled.
    pub fn level_changed(&self) -> Notified<'_> {
        self.lease_state().level_changed.notified()
    }

    /// Whether the abort latch is set. While the latch is set, the MCP addon denies:
    /// - every tool call
    /// - every other request of the client that may carry text
    /// - every answer of the client to a server's request
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Sets the abort latch: see [`Container::is_aborted`].
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    /// Completes the futures of [`Container::level_changed`], since a grant of this lease has ended:
    /// flows that rest on it are judged again.
    pub fn grant_ended(&self) {
        self.lease_state().level_changed.notify_waiters();
    }

    /// The level and the abort latch.
    pub fn standing(&self) -> Standing {
        Standing {
            level: self.level(),
            aborted: self.is_aborted(),
        }
    }

    /// Raises the level to `reached.level` if that is higher, and sets the latch if
    /// `reached.aborted`. Never lowers the level or clears the latch.
    pub fn reach(&self, reached: Standing) {
        self.raise_level(reached.level);
        if reached.aborted {
            self.abort();
        }
    }

    /// Lowers the level to `Public` and clears the latch, at an operator's command.
    pub fn reset_standing(&self) {
        self.aborted.store(false, Ordering::Release);
        let before = self.level.swap(Level::Public as u8, Ordering::AcqRel);
        if before != Level::Public as u8 {
            self.lease_state().level_changed.notify_waiters();
        }
    }

    /// The value of type `T` that the lease owns, made at its first use and dropped with the lease.
    /// Use an `Arc` for a value that must outlive the lease.
    pub fn state_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        self.lease_state().values.get_or_init(make)
    }
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Container({}, lease {})", self.id, self.lease)
    }
}

fn unix_millis(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn container() -> Container {
        let now = OffsetDateTime::UNIX_EPOCH;
        let id = ContainerId::parse("web").unwrap();
        Container::new(Registration {
            source: Source::Listener(id.clone()),
            id,
            lease: LeaseId::generate(),
            repos: Vec::new(),
            auth_mode: AuthMode::User,
            created_at: now,
            expires_at: now + time::Duration::HOUR,
            allowed_domains: None,
            standing: Standing::default(),
        })
    }

    #[test]
    fn ending_a_lease_cancels_its_token_even_if_the_token_is_made_later() {
        let (before, after) = (container(), container());
        let token = before.ended().clone();
        assert!(!token.is_cancelled() && !before.has_ended() && !after.has_ended());
        before.end();
        after.end();
        assert!(token.is_cancelled() && before.has_ended());
        assert!(after.has_ended() && after.ended().is_cancelled());
        assert!(!after.is_live(OffsetDateTime::UNIX_EPOCH));
    }

    #[tokio::test]
    async fn a_level_change_wakes_futures_that_were_made_before_it() {
        let web = container();
        let changes: [fn(&Container); 3] = [
            |web| web.raise_level(Level::Confidential),
            |web| web.raise_level(Level::Secret),
            Container::reset_standing,
        ];
        for change in changes {
            let unpolled = web.level_changed();
            change(&web);
            unpolled.await;
        }
        let mut unchanged = std::pin::pin!(web.level_changed());
        web.raise_level(Level::Public);
        web.reset_standing();
        assert!((&mut unchanged).now_or_never().is_none());
    }

    #[test]
    fn an_unused_lease_is_small_and_checking_it_allocates_nothing() {
        let idle = container();
        assert!(size_of::<Container>() <= 128, "{}", size_of::<Container>());
        assert!(size_of::<LeaseState>() <= 64, "{}", size_of::<LeaseState>());
        assert!(idle.is_live(OffsetDateTime::UNIX_EPOCH));
        assert!(idle.state.get().is_none());
        idle.state_or_init(|| 1_u32);
        assert!(idle.state.get().is_some());
    }

    #[test]
    fn a_thread_that_sees_the_token_cancelled_sees_the_lease_ended() {
        for _ in 0..100 {
            let ending = container();
            ending.ended();
            std::thread::scope(|scope| {
                scope.spawn(|| ending.end());
                while !ending.ended().is_cancelled() {
                    std::hint::spin_loop();
                }
                assert!(ending.has_ended());
            });
        }
    }
}
