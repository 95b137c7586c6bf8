//! The state of a login, and the decision that follows from it: send its token, wait, or refresh.

use std::sync::Arc;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{Refusal, TokenFile, Tokens};
use crate::contract::FileVersion;
use crate::credentials::{Fetched, Token};

/// A token is refreshed this long before it expires, so that it does not expire during a request.
const AHEAD: Duration = Duration::from_secs(300);
/// The first and the longest age that a refreshed token must reach before it is refreshed again,
/// unless it has expired. Without this pause, a host that answers every request with a 401 would
/// make the proxy flood the token endpoint. The age doubles after each refresh that did not end the
/// 401s.
const MIN_AGE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
/// Time between checks of the token file for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The first and the longest wait after a failed refresh. Each further failure doubles the wait.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// The number of replaced tokens that are kept, to scrub them from responses. If there are more,
/// the oldest are dropped.
const MAX_REPLACED: usize = 4;

/// The state of the token file, the tokens in use, and why the most recent refresh failed, if it
/// did.
#[derive(Default)]
pub struct LoginState {
    /// When the file was last checked for changes.
    pub checked: Option<Instant>,
    /// Why the file cannot be read. No token is sent then.
    pub unreadable: Option<String>,
    pub in_file: Option<FileTokens>,
    pub current: Option<CurrentTokens>,
    /// Whether the tokens in use must still be written to the file.
    pub unwritten: bool,
    pub failed: Option<Failed>,
    replaced: Vec<Replaced>,
}

/// The file as it was read or written last.
#[derive(Clone)]
pub struct FileTokens {
    pub version: FileVersion,
    pub tokens: Tokens,
}

/// The tokens in use.
pub struct CurrentTokens {
    pub file: TokenFile,
    pub tokens: Tokens,
    /// The access token, prepared to be sent, if it is usable.
    pub token: Option<Arc<Token>>,
    /// When a refresh yielded the tokens; `None` if they were read from the file.
    pub refreshed: Option<Instant>,
    /// Whether a host answered 401 to the access token.
    pub refused: bool,
    /// The age that the tokens must reach before they are refreshed again, unless they expire.
    pub min_age: Duration,
}

/// A failed refresh: its reason, and the time until the next attempt.
pub struct Failed {
    refusal: Refusal,
    pub until: Instant,
    pub wait: Duration,
}

/// A token that is no longer sent and may still be valid.
struct Replaced {
    secret: Zeroizing<String>,
    expires: Option<OffsetDateTime>,
}

impl CurrentTokens {
    /// Tokens that were read from a file. For tokens of a refresh, [`LoginState::renew`] sets
    /// `refreshed` and `min_age`.
    pub fn of(file: TokenFile, tokens: Tokens, token: Option<Arc<Token>>) -> Self {
        Self {
            file,
            tokens,
            token,
            refreshed: None,
            refused: false,
            min_age: MIN_AGE.0,
        }
    }

    fn replaced(&self) -> Option<Replaced> {
        let (secret, expires) = (self.tokens.access.clone()?, self.tokens.expires);
        Some(Replaced { secret, expires })
    }

    fn left(&self) -> Option<time::Duration> {
        let expires = self.tokens.expires?;
        Some(expires - OffsetDateTime::now_utc())
    }

    fn lives(&self) -> bool {
        self.token.is_some() && self.left().is_none_or(time::Duration::is_positive)
    }

    fn is_young(&self) -> bool {
        self.refreshed.is_some_and(|at| at.elapsed() < self.min_age)
    }
}

impl LoginState {
    /// Whether the file was checked less than `CHECK_INTERVAL` ago.
    pub fn is_fresh(&self) -> bool {
        self.checked.is_some_and(|at| at.elapsed() < CHECK_INTERVAL)
    }

    /// Whether the most recent check could read the file, and the most recent refresh succeeded.
    pub fn is_valid(&self) -> bool {
        self.unreadable.is_none() && self.failed.is_none()
    }

    /// The token to send now; `None` if a flow must wait for another token. A token that a host
    /// refused is sent only while its refresh has to wait, and not after the refresh has failed
    /// permanently.
    pub fn to_send(&self) -> Option<Arc<Token>> {
        let current = self.current.as_ref().filter(|current| current.lives())?;
        let failed = self.failed.as_ref();
        let is_lost = failed.is_some_and(|failed| failed.refusal.permanent);
        let waits = current.is_young() || (self.must_wait().is_some() && !is_lost);
        let may_send = self.unreadable.is_none() && (!current.refused || waits);
        current.token.clone().filter(|_| may_send)
    }

    /// Whether the tokens in use must be refreshed or written to the file now.
    pub fn is_due(&self) -> bool {
        let Some(current) = &self.current else {
            return false;
        };
        let is_near = current.left().is_some_and(|left| left < AHEAD);
        let is_old = !current.lives() || ((current.refused || is_near) && !current.is_young());
        let may_try = self.unreadable.is_none() && self.must_wait().is_none();
        may_try && (self.unwritten || is_old)
    }

    /// The result for a flow that needs a token; `None` if a refresh should be tried first.
    pub fn result(&self) -> Option<Fetched> {
        let why_not = || self.unreadable.as_deref().or(self.must_wait());
        let token = self.to_send().map(Ok);
        token.or_else(|| why_not().map(|why| Err(why.to_owned())))
    }

    /// Why no refresh may be tried now; `None` if one may.
    fn must_wait(&self) -> Option<&str> {
        let failed = self.failed.as_ref()?;
        let waits = failed.refusal.permanent || Instant::now() < failed.until;
        waits.then_some(&failed.refusal.why)
    }

    /// The access tokens that a new token must also scrub from responses: the current token, which
    /// the new token is about to replace, and earlier ones. Expired tokens are left out.
    pub fn earlier(&self) -> Vec<Zeroizing<String>> {
        let now = OffsetDateTime::now_utc();
        let may_work = |old: &&Replaced| old.expires.is_none_or(|at| at > now);
        let used = self.current.as_ref().and_then(CurrentTokens::replaced);
        let all = used.iter().chain(&self.replaced).filter(may_work);
        all.map(|old| old.secret.clone()).collect()
    }

    /// Replaces the tokens in use, and remembers the old ones.
    fn replace_current(&mut self, current: CurrentTokens) {
        let before = self.current.replace(current);
        if let Some(replaced) = before.as_ref().and_then(CurrentTokens::replaced) {
            self.replaced.insert(0, replaced);
            self.replaced.truncate(MAX_REPLACED);
        }
    }

    /// Takes over a new login and clears the failures of the old one.
    pub fn begin(&mut self, current: CurrentTokens) {
        self.replace_current(current);
        self.unwritten = false;
        self.failed = None;
    }

    /// Takes over the tokens of a refresh, which are still to be written to the file.
    pub fn renew(&mut self, mut current: CurrentTokens) {
        let before = self.current.as_ref();
        let in_vain = before.filter(|before| before.refused && before.refreshed.is_some());
        current.min_age = in_vain.map_or(MIN_AGE.0, |before| (before.min_age * 2).min(MIN_AGE.1));
        current.refreshed = Some(Instant::now());
        self.replace_current(current);
        self.unwritten = true;
    }

    /// Records that the tokens in use are in the file.
    pub fn wrote(&mut self, version: FileVersion) {
        let Some(current) = &self.current else { return };
        let tokens = current.tokens.clone();
        self.in_file = Some(FileTokens { version, tokens });
        self.unwritten = false;
        if current.token.is_some() {
            self.failed = None;
        }
    }

    /// Records a failed refresh. The next one is tried after a pause or, if the failure is
    /// permanent, only after a new login.
    pub fn failed(&mut self, refusal: Refusal) {
        let before = self.failed.as_ref().map(|failed| failed.wait);
        let (first, longest) = BACK_OFF;
        let wait = before.map_or(first, |wait| (wait * 2).min(longest));
        self.failed = Some(Failed {
            refusal,
            until: Instant::now() + wait,
            wait,
        });
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn current(secret: &str, expires: Option<OffsetDateTime>) -> CurrentTokens {
        let tokens = Tokens {
            access: Some(Zeroizing::new(secret.to_owned())),
            refresh: None,
            expires,
            account: None,
        };
        let token = Token::new("login", secret, []).unwrap();
        let file = TokenFile::parse(b"{}").unwrap();
        CurrentTokens::of(file, tokens, Some(Arc::new(token)))
    }

    /// Simulates a 401 `seconds` after a token's refresh. Returns whether another refresh is due.
    fn refused_after(known: &mut LoginState, seconds: u64) -> bool {
        let current = known.current.as_mut().unwrap();
        current.refused = true;
        current.refreshed = Instant::now().checked_sub(Duration::from_secs(seconds));
        known.unwritten = false;
        assert_ne!(known.to_send().is_some(), known.is_due());
        known.is_due()
    }

    #[test]
    fn refreshes_that_do_not_end_401s_become_rarer() {
        let mut known = LoginState::default();
        known.begin(current("first", None));
        known.current.as_mut().unwrap().refused = true;
        assert!(known.is_due(), "the first 401 makes a refresh due");
        known.renew(current("again", None));
        for wait in [30, 60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert!(!refused_after(&mut known, wait - 1), "{wait}");
            assert!(refused_after(&mut known, wait), "{wait}");
            known.renew(current("again", None));
        }
        known.renew(current("replaces a token that no host refused", None));
        assert!(refused_after(&mut known, 30));
    }

    #[test]
    fn at_most_four_replaced_tokens_are_remembered_and_no_expired_one() {
        let now = OffsetDateTime::now_utc();
        let mut known = LoginState::default();
        known.begin(current("over", Some(now - AHEAD)));
        known.renew(current("lives", Some(now + AHEAD)));
        known.begin(current("used", None));
        let remembered = |known: &LoginState| {
            known
                .earlier()
                .iter()
                .map(|s| s.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(remembered(&known), ["used", "lives"]);
        for _ in 0..9 {
            known.renew(current("again", None));
        }
        assert_eq!(remembered(&known).len(), 1 + MAX_REPLACED);
    }

    #[test]
    fn a_token_is_sent_until_it_expires_and_is_due_for_refresh_earlier() {
        let now = OffsetDateTime::now_utc();
        each_row(
            [
                (AHEAD * 2, true, false),
                (AHEAD / 2, true, true),
                (Duration::ZERO, false, true),
            ],
            |(left, sent, due)| {
                let mut known = LoginState::default();
                known.begin(current("token", Some(now + left)));
                let found = (known.to_send().is_some(), known.is_due());
                assert_eq!(found, (sent, due), "{left:?}");
            },
        );
    }
}
