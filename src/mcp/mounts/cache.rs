//! Caches the lists that were read from a server.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::Definition;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::MountError;
use super::known::{Entry, ResourceIndex};

/// After a failed reading, the cached list is returned for this time without another attempt. Also
/// the shortest time for which a list is fresh.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// Time limit for reading a whole list.
const READING: Duration = Duration::from_secs(30);

/// Resources, their templates, and an index of both by URI.
pub(super) type Resources = (Arc<[Entry]>, Arc<[Entry]>, Arc<ResourceIndex>);

/// Cache of one list: the newest reading, and the instant until which it is fresh.
pub(super) struct Cache<T> {
    state: Mutex<CacheState<T>>,
    /// Held while the list is being read.
    reading: tokio::sync::Mutex<()>,
}

struct CacheState<T> {
    value: Option<T>,
    /// The value is fresh until this instant.
    until: Option<Instant>,
    /// Set if the server announced a change, or an operator accepted a tool's definition, since the
    /// list was read.
    is_outdated: bool,
}

/// A look-up in a cache.
pub(super) enum Found<T> {
    Fresh(T),
    /// No longer fresh: the caller returns the value, and reads the list again in the background.
    Old(T),
    /// Never read, or marked as outdated: the caller must wait for a reading.
    Nothing,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(CacheState {
                value: None,
                until: None,
                is_outdated: false,
            }),
            reading: tokio::sync::Mutex::default(),
        }
    }
}

impl<T: Clone> Cache<T> {
    pub fn find(&self) -> Found<T> {
        let state = self.state.lock();
        match &state.value {
            Some(value) if !state.is_outdated => match state.until {
                Some(until) if Instant::now() < until => Found::Fresh(value.clone()),
                _ => Found::Old(value.clone()),
            },
            _ => Found::Nothing,
        }
    }

    /// Whether the list can be returned at once.
    pub fn is_there(&self) -> bool {
        let state = self.state.lock();
        state.value.is_some() && !state.is_outdated
    }

    /// Marks the list as changed since it was read.
    pub fn outdate(&self) {
        self.state.lock().is_outdated = true;
    }

    pub fn is_being_read(&self) -> bool {
        self.reading.try_lock().is_err()
    }

    /// Returns `known` or the cached value if one of them equals `now`, otherwise `now`. So an
    /// unchanged list keeps its `Arc`, and callers need not derive values from the list again.
    /// `known` is the list that was read last in any session: sessions with equal lists share one.
    pub fn same_or(&self, known: Option<T>, now: T) -> T
    where
        T: Differs,
    {
        let cached = self.state.lock().value.clone();
        let mut before = known.into_iter().chain(cached);
        before.find(|before| !now.differs(before)).unwrap_or(now)
    }

    /// Returns the list, and whether this call read it. Calls `read` only if the cached list is not
    /// fresh. One call reads at a time. The others wait, and read only if the list is still not
    /// fresh. If reading fails or takes longer than [`READING`], returns the list that was read
    /// before, which then counts as fresh for [`PAUSE`]. Fails only if the list was never read.
    pub async fn read(
        &self,
        read: impl Future<Output = Result<(T, Duration), MountError>>,
    ) -> Result<(T, bool), MountError> {
        let _reading = self.reading.lock().await;
        if let Found::Fresh(value) = self.find() {
            return Ok((value, false));
        }
        // A change during the reading sets the flag again, and so does `unread` if the reading is
        // cancelled.
        let was_outdated = std::mem::replace(&mut self.state.lock().is_outdated, false);
        let mut unread = Unread {
            cache: self,
            was_outdated,
        };
        let read = timeout(READING, read).await;
        unread.was_outdated = false;
        drop(unread);
        let mut state = self.state.lock();
        match read.unwrap_or(Err(MountError::TimedOut)) {
            Ok((value, age)) => {
                state.value = Some(value.clone());
                state.until = Some(Instant::now() + age);
                Ok((value, true))
            }
            Err(error) => {
                state.until = Some(Instant::now() + PAUSE);
                match &state.value {
                    Some(value) => Ok((value.clone(), false)),
                    None => Err(error),
                }
            }
        }
    }
}

/// Restores `is_outdated` if a reading is cancelled.
struct Unread<'a, T> {
    cache: &'a Cache<T>,
    was_outdated: bool,
}

impl<T> Drop for Unread<'_, T> {
    fn drop(&mut self) {
        if self.was_outdated {
            self.cache.state.lock().is_outdated = true;
        }
    }
}

/// Compares two readings of a list by the JSON texts of the entries. Tools are also compared by
/// their pins, which say whether the definition is accepted.
pub(super) trait Differs {
    fn differs(&self, before: &Self) -> bool;
}

impl Differs for Arc<[Arc<Definition>]> {
    fn differs(&self, before: &Self) -> bool {
        let same = |(now, before): (&Arc<Definition>, &Arc<Definition>)| {
            now.raw.get() == before.raw.get() && now.pin == before.pin
        };
        self.len() != before.len() || !self.iter().zip(before.iter()).all(same)
    }
}

impl Differs for Arc<[Entry]> {
    fn differs(&self, before: &Self) -> bool {
        let same = |(now, before): (&Entry, &Entry)| now.raw.get() == before.raw.get();
        self.len() != before.len() || !self.iter().zip(before.iter()).all(same)
    }
}

impl Differs for Resources {
    fn differs(&self, before: &Self) -> bool {
        self.0.differs(&before.0) || self.1.differs(&before.1)
    }
}
