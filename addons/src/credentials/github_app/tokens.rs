//! Installation tokens of a GitHub App: one for each lease, dropped with the lease.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::installation::{Minted, owners, repos_of};
use super::{AppSettings, Installation, jwt};
use crate::contract::{BoxFuture, Container, Repo, SecretSource, System, SystemPorts};
use crate::credentials::wiped::wipe_bytes;
use crate::credentials::{Fetched, Token, TokenSource};

/// A token is replaced this long before it expires. GitHub's tokens last an hour.
const AHEAD: Duration = Duration::from_secs(300);
/// Pause after a failure before another token is requested for the lease. Also the age below which
/// a token is kept after a 401.
const BACK_OFF: Duration = Duration::from_secs(10);
/// Time limit for minting one token, over all its requests to GitHub. Shorter than the 60 s for
/// which a client's request waits, so that minting fails first and the denial names the cause.
const LIMIT: Duration = Duration::from_secs(25);

/// Requests the tokens of one App installation. A reload keeps this source, so that leases keep
/// their tokens, if the entry has the same name and the same `github_app` settings.
pub struct AppTokens {
    /// Key of this source's token in the state of a lease; differs for each `AppTokens`.
    number: u64,
    name: Arc<str>,
    settings: AppSettings,
    key: Arc<dyn SecretSource>,
    ports: SystemPorts,
    principal: Arc<System>,
    owner: OnceLock<String>,
}

/// The tokens of one lease, by [`AppTokens::number`].
#[derive(Default)]
struct LeaseTokens(Mutex<HashMap<u64, Arc<Slot>>>);

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    /// Held while a token is minted.
    minting: Arc<AsyncMutex<()>>,
}

#[derive(Default)]
struct State {
    token: Option<(Arc<Token>, OffsetDateTime)>,
    minted: Option<Instant>,
    failed: Option<(Instant, String)>,
}

impl AppTokens {
    pub fn new(name: &str, settings: &AppSettings, ports: SystemPorts) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let principal = System {
            name: "github_app".into(),
            hosts: vec![(settings.installation.api.clone(), 443)],
            trust_private: false,
            url_secrets: Default::default(),
        };
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            settings: settings.clone(),
            key: settings.private_key.source(&*ports.files),
            ports,
            principal: Arc::new(principal),
            owner: OnceLock::new(),
        }
    }

    /// Whether these tokens belong to an entry with this name and these settings.
    pub fn is(&self, name: &str, settings: &AppSettings) -> bool {
        *self.name == *name && self.settings == *settings
    }

    fn installation(&self) -> &Installation {
        &self.settings.installation
    }

    fn slot(&self, container: &Container) -> Arc<Slot> {
        let tokens = container.state_or_init(LeaseTokens::default);
        let mut slots = tokens.0.lock();
        Arc::clone(slots.entry(self.number).or_default())
    }

    /// Waits until no other flow mints a token for the lease, then returns the lease's token. If
    /// the lease has no valid token, mints one. If an attempt failed less than `BACK_OFF` ago,
    /// returns its error instead.
    async fn wait(self: &Arc<Self>, container: &Arc<Container>) -> Fetched {
        let slot = self.slot(container);
        let guard = Arc::clone(&slot.minting).lock_owned().await;
        if let Some(result) = slot.state.lock().result() {
            return result;
        }
        let minted = self.start(guard, slot, Arc::clone(container)).await;
        let ended = "the task that requests the token ended without a result";
        minted.unwrap_or_else(|_| Err(ended.to_owned()))
    }

    /// Mints in a separate task, so that a client that disconnects does not cancel the request to
    /// GitHub. The end of the lease cancels it.
    fn start(
        self: &Arc<Self>,
        guard: OwnedMutexGuard<()>,
        slot: Arc<Slot>,
        container: Arc<Container>,
    ) -> oneshot::Receiver<Fetched> {
        let tokens = Arc::clone(self);
        self.ports.tasks.run(async move {
            let _guard = guard;
            let minting = tokens.mint(&slot, &container);
            let minted = container.ended().run_until_cancelled(minting).await;
            minted.unwrap_or_else(|| Err("the container's lease ended".to_owned()))
        })
    }

    async fn mint(&self, slot: &Slot, container: &Container) -> Fetched {
        let requested = timeout(LIMIT, self.request_token(container)).await;
        let late = |_| {
            Err(format!(
                "GitHub did not answer within {} s",
                LIMIT.as_secs()
            ))
        };
        let requested = requested.unwrap_or_else(late);
        let made = requested.and_then(|minted| {
            let token = Token::new(&self.name, &minted.secret, [])?;
            Ok((Arc::new(token), minted.expires))
        });
        let mut state = slot.state.lock();
        match made {
            Ok((token, expires)) => {
                *state = State {
                    token: Some((Arc::clone(&token), expires)),
                    minted: Some(Instant::now()),
                    failed: None,
                };
                Ok(token)
            }
            Err(why) => {
                tracing::warn!(credential = %self.name, container = %container.id, "cannot mint an installation token: {why}");
                state.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    async fn request_token(&self, container: &Container) -> Result<Minted, String> {
        let jwt = self.jwt()?;
        let repos = self.repos(container, &jwt).await?;
        let request = self.installation().token_request(&jwt, &repos)?;
        let (head, body) = self.send(request).await?.into_parts();
        let minted = self.installation().minted(container, head.status, &body);
        wipe_bytes(body);
        minted
    }

    /// The container's repositories that belong to the installation's owner. Requests the owner
    /// from GitHub only if the container has repositories of several owners. A single owner is not
    /// compared with the installation's owner. If they differ, GitHub refuses the token request, or
    /// [`Installation::minted`] refuses the token.
    async fn repos<'c>(
        &self,
        container: &'c Container,
        jwt: &str,
    ) -> Result<Vec<&'c Repo>, String> {
        if let [owner] = owners(container).as_slice() {
            return Ok(repos_of(container, owner));
        }
        if self.owner.get().is_none() {
            let request = self.installation().owner_request(jwt)?;
            let response = self.send(request).await?;
            let owner = self
                .installation()
                .owner(response.status(), response.body())?;
            // Concurrent requests get the same owner.
            let _ = self.owner.set(owner);
        }
        let owner = self.owner.get().map_or("", String::as_str);
        Ok(repos_of(container, owner))
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let sent = self.ports.outbound.send(&self.principal, request).await;
        sent.map_err(|error| error.to_string())
    }

    /// The App's JWT, which authorizes its requests.
    fn jwt(&self) -> Result<Zeroizing<String>, String> {
        let pem = self.key.read()?;
        jwt::signed(&self.installation().app_id, &pem, OffsetDateTime::now_utc())
    }
}

impl State {
    fn left(&self) -> Option<time::Duration> {
        let (_, expires) = self.token.as_ref()?;
        Some(*expires - OffsetDateTime::now_utc())
    }

    fn to_send(&self) -> Option<Arc<Token>> {
        let (token, _) = self.token.as_ref()?;
        let lives = self.left().is_some_and(time::Duration::is_positive);
        lives.then(|| Arc::clone(token))
    }

    /// Whether the token should be replaced: it expires within `AHEAD` or has expired, and no
    /// attempt failed less than `BACK_OFF` ago. `false` without a token.
    fn is_due(&self) -> bool {
        self.left().is_some_and(|left| left < AHEAD) && self.must_wait().is_none()
    }

    /// The result for a flow that needs a token; `None` if one should be minted first.
    fn result(&self) -> Option<Fetched> {
        let token = self.to_send().map(Ok);
        token.or_else(|| self.must_wait().map(Err))
    }

    fn must_wait(&self) -> Option<String> {
        let (at, why) = self.failed.as_ref()?;
        (at.elapsed() < BACK_OFF).then(|| why.clone())
    }
}

impl TokenSource for Arc<AppTokens> {
    /// False for a container without repositories: to a token request that names no repository,
    /// GitHub grants a token for all repositories.
    fn is_for(&self, container: &Container) -> bool {
        !container.repos.is_empty()
    }

    fn current(&self, container: &Arc<Container>) -> Option<Arc<Token>> {
        let slot = self.slot(container);
        let (token, is_due) = {
            let state = slot.state.lock();
            (state.to_send()?, state.is_due())
        };
        // Checked again under the lock: another flow may have replaced the token meanwhile.
        if is_due
            && let Ok(guard) = Arc::clone(&slot.minting).try_lock_owned()
            && slot.state.lock().is_due()
        {
            self.start(guard, slot, Arc::clone(container));
        }
        Some(token)
    }

    fn fetch<'a>(&'a self, container: &'a Arc<Container>) -> BoxFuture<'a, Fetched> {
        Box::pin(self.wait(container))
    }

    fn refused(&self, container: &Container, token: &Arc<Token>) {
        let slot = self.slot(container);
        let mut state = slot.state.lock();
        let is_young = state.minted.is_some_and(|at| at.elapsed() < BACK_OFF);
        let is_this = matches!(&state.token, Some((own, _)) if Arc::ptr_eq(own, token));
        if is_this && !is_young {
            state.token = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_token_is_sent_until_it_expires_and_is_due_for_replacement_earlier() {
        each_row(
            [
                (AHEAD * 2, true, false),
                (AHEAD / 2, true, true),
                (Duration::ZERO, false, true),
            ],
            |(left, sent, due)| {
                let token = Arc::new(Token::new("app", "ghs_1", []).unwrap());
                let mut state = State {
                    token: Some((token, OffsetDateTime::now_utc() + left)),
                    ..State::default()
                };
                assert_eq!((state.to_send().is_some(), state.is_due()), (sent, due));
                state.failed = Some((Instant::now(), "why".to_owned()));
                assert!(!state.is_due());
                assert_eq!(state.result().unwrap().is_ok(), sent);
            },
        );
    }
}
