//! OAuth logins: the access token at hand, and one refresh at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::{Container, SecretSource, System};
use addons::credentials::oauth::{Login, Refusal, TokenFile, Tokens};
use addons::credentials::{Fetched, Token, TokenSource};
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use time::OffsetDateTime;

use super::SystemClient;
use super::token_file::{self, Replacement, Version};
use crate::config::OauthConfig;
use crate::secrets;

/// How long before its end a token is refreshed: requests under way outlive it.
const AHEAD: Duration = Duration::from_secs(300);
/// A token that is younger is not refreshed unless it ran out: a host that answers 401 to
/// everything must not make us hammer the token endpoint.
const MIN_AGE: Duration = Duration::from_secs(30);
/// How long a token is used before its file is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The first and the longest wait after a refresh that failed for the time being.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// One login and its token file. Lives over reloads, so that no two ever refresh it at once.
pub struct OauthTokens {
    name: Arc<str>,
    config: OauthConfig,
    client_secret: Option<Arc<dyn SecretSource>>,
    client: Arc<SystemClient>,
    principal: Arc<System>,
    refreshes: IntCounterVec,
    state: Mutex<State>,
    refreshing: tokio::sync::Mutex<()>,
}

/// What is known of the file, and how the last refresh went.
#[derive(Default)]
struct State {
    looked: Option<Instant>,
    version: Option<Version>,
    loaded: Option<Loaded>,
    failed: Option<Failed>,
}

struct Loaded {
    file: TokenFile,
    tokens: Tokens,
    token: Option<Arc<Token>>,
    /// When it was refreshed by us.
    refreshed: Option<Instant>,
    refused: bool,
}

struct Failed {
    why: String,
    permanent: bool,
    until: Instant,
    wait: Duration,
}

impl OauthTokens {
    pub fn new(
        name: &str,
        config: &OauthConfig,
        client: Arc<SystemClient>,
        refreshes: IntCounterVec,
    ) -> Self {
        let principal = System {
            name: "oauth",
            hosts: vec![config.login.token_url.host()],
            in_house: false,
        };
        Self {
            name: name.into(),
            config: config.clone(),
            client_secret: config.client_secret.as_ref().map(secrets::source),
            client,
            principal: Arc::new(principal),
            refreshes,
            state: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
        }
    }

    /// Whether these are the tokens of such an entry.
    pub fn is(&self, name: &str, config: &OauthConfig) -> bool {
        *self.name == *name && self.config == *config
    }

    /// Whether the file can be read and nobody has to log in anew.
    pub fn is_well(&self) -> bool {
        let mut state = self.state.lock();
        self.look(&mut state, LOOK_AGAIN).is_ok() && state.failed.is_none()
    }

    fn login(&self) -> &Login {
        &self.config.login
    }

    /// Loads the file if it is another one by now. A new file is a new login: what was wrong
    /// with the old one is forgotten.
    fn look(&self, state: &mut State, fresh_for: Duration) -> Result<(), String> {
        if state.looked.is_some_and(|at| at.elapsed() < fresh_for) && state.loaded.is_some() {
            return Ok(());
        }
        let path = &self.config.token_file;
        let shown = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let version = token_file::version(path).map_err(|error| shown(&error))?;
        state.looked = Some(Instant::now());
        if state.version.as_ref() == Some(&version) && state.loaded.is_some() {
            return Ok(());
        }
        let read = token_file::read(path).map_err(|error| shown(&error))?;
        let file = TokenFile::parse(&read.text).map_err(|why| shown(&why))?;
        state.loaded = Some(self.load(file).map_err(|why| shown(&why))?);
        state.version = Some(read.version);
        state.failed = None;
        Ok(())
    }

    fn load(&self, file: TokenFile) -> Result<Loaded, String> {
        let tokens = self.login().tokens(&file)?;
        let token = match &tokens.access {
            Some(access) => {
                let mut token = Token::new(&self.name, access)?;
                if let (Some(field), Some(account)) =
                    (self.login().account_field(), &tokens.account)
                {
                    token = token.with_field(field.clone(), account)?;
                }
                Some(Arc::new(token))
            }
            None => None,
        };
        Ok(Loaded {
            file,
            tokens,
            token,
            refreshed: None,
            refused: false,
        })
    }

    /// Takes part in the one refresh there is, and answers with the token after it.
    async fn refresh(&self) -> Fetched {
        let _alone = self.refreshing.lock().await;
        let (request, replacement, asked_with) = {
            let mut state = self.state.lock();
            self.look(&mut state, Duration::ZERO)?;
            if let Some(token) = state.to_send() {
                return Ok(token);
            }
            // The one before us failed: asking again at once would be answered the same.
            if let Some(why) = state.must_wait() {
                return Err(why.to_owned());
            }
            match self.prepare(&state) {
                Ok((request, replacement)) => (request, replacement, state.version.clone()),
                Err(why) => return self.failed(&mut state, transient(why)),
            }
        };
        let answered = self.client.send(&self.principal, request).await;
        let mut state = self.state.lock();
        let response = match answered {
            Ok(response) => response,
            Err(error) => return self.failed(&mut state, transient(error.to_string())),
        };
        let Some(loaded) = state
            .loaded
            .as_ref()
            .filter(|_| state.version == asked_with)
        else {
            // Somebody logged in anew meanwhile: what was asked for belongs to the old login.
            return state
                .to_send()
                .ok_or_else(|| "its file was replaced".to_owned());
        };
        let now = OffsetDateTime::now_utc();
        let refreshed =
            self.login()
                .refreshed(&loaded.file, response.status(), response.body(), now);
        match refreshed {
            Ok(file) => self.keep(&mut state, file, replacement),
            Err(refusal) => self.failed(&mut state, refusal),
        }
    }

    fn prepare(&self, state: &State) -> Result<(http::Request<bytes::Bytes>, Replacement), String> {
        let refresh = state
            .loaded
            .as_ref()
            .and_then(|l| l.tokens.refresh.as_ref());
        let refresh = refresh.ok_or("it ran out and there is no refresh token: log in again")?;
        let secret = self.client_secret.as_ref();
        let secret = secret.map(|source| source.read()).transpose()?;
        let secret = secret.as_ref().map(|secret| secret.as_str());
        let request = self.login().refresh_request(refresh, secret)?;
        let path = &self.config.token_file;
        let replacement = Replacement::begin(path).map_err(|error| {
            let path = path.display();
            format!("{path} cannot be rewritten, so it is not refreshed: {error}")
        })?;
        Ok((request, replacement))
    }

    /// The new tokens, in memory in any case: the old refresh token may work no more.
    fn keep(&self, state: &mut State, file: TokenFile, replacement: Replacement) -> Fetched {
        let text = file.text();
        let mut loaded = self.load(file)?;
        loaded.refreshed = Some(Instant::now());
        let token = loaded.token.clone();
        state.loaded = Some(loaded);
        state.failed = None;
        self.count("ok");
        let written = replacement.finish(text.as_bytes());
        let written = written.and_then(|()| token_file::version(&self.config.token_file));
        match written {
            Ok(version) => state.version = Some(version),
            Err(error) => {
                let (name, path) = (&self.name, self.config.token_file.display());
                tracing::error!(credential = %name, %error, "{path} could not be rewritten: the new tokens are lost with this process");
            }
        }
        token.ok_or_else(|| "it holds no access token".to_owned())
    }

    /// A token that has not run out is still sent.
    fn failed(&self, state: &mut State, refusal: Refusal) -> Fetched {
        let before = state.failed.as_ref().map(|failed| failed.wait);
        let (first, longest) = BACK_OFF;
        let wait = before.map_or(first, |wait| (wait * 2).min(longest));
        let name = &self.name;
        tracing::warn!(credential = %name, permanent = refusal.permanent, "not refreshed: {}", refusal.why);
        self.count(if refusal.permanent {
            "refused"
        } else {
            "failed"
        });
        let why = refusal.why.clone();
        state.failed = Some(Failed {
            why: refusal.why,
            permanent: refusal.permanent,
            until: Instant::now() + wait,
            wait,
        });
        state.to_send().ok_or(why)
    }

    fn count(&self, outcome: &str) {
        let provider = self.login().provider.as_str();
        self.refreshes.with_label_values(&[provider, outcome]).inc();
    }
}

fn transient(why: String) -> Refusal {
    Refusal {
        permanent: false,
        why,
    }
}

impl State {
    /// The token to send as things are: a good one; or, where it cannot be refreshed just now,
    /// one that has not run out.
    fn to_send(&self) -> Option<Arc<Token>> {
        let loaded = self.loaded.as_ref()?;
        let left = loaded
            .tokens
            .expires
            .map(|at| at - OffsetDateTime::now_utc());
        let lives = left.is_none_or(|left| left.is_positive());
        let young = loaded.refreshed.is_some_and(|at| at.elapsed() < MIN_AGE);
        let due = loaded.refused || left.is_some_and(|left| left < AHEAD);
        // A token that the host refused may be sent again while a refresh only has to wait; not
        // where there will be none.
        let lost = loaded.refused && self.failed.as_ref().is_some_and(|f| f.permanent);
        let may_send = lives && (!due || young || (self.must_wait().is_some() && !lost));
        loaded.token.clone().filter(|_| may_send)
    }

    /// Why no refresh is tried now.
    fn must_wait(&self) -> Option<&str> {
        let failed = self.failed.as_ref()?;
        let waits = failed.permanent || Instant::now() < failed.until;
        waits.then_some(&failed.why)
    }
}

/// What the chain asks.
pub struct OauthSource(pub Arc<OauthTokens>);

impl TokenSource for OauthSource {
    fn is_for(&self, _container: &Container) -> bool {
        true
    }

    fn at_hand(&self, _container: &Container) -> Option<Arc<Token>> {
        let mut state = self.0.state.lock();
        self.0.look(&mut state, LOOK_AGAIN).ok()?;
        state.to_send()
    }

    fn fetch<'a>(
        &'a self,
        _container: &'a Arc<Container>,
    ) -> Pin<Box<dyn Future<Output = Fetched> + Send + 'a>> {
        let tokens = Arc::clone(&self.0);
        Box::pin(async move {
            // On its own: a client that goes away in the middle must not lose what the endpoint
            // answers, for the old refresh token may be spent by then.
            let refreshing = tokio::spawn(async move { tokens.refresh().await });
            let refreshed = refreshing.await;
            refreshed.unwrap_or_else(|_| Err("the refresh broke off".to_owned()))
        })
    }

    fn refused(&self, _container: &Container, token: &Arc<Token>) {
        let mut state = self.0.state.lock();
        if let Some(loaded) = &mut state.loaded
            && loaded
                .token
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, token))
        {
            loaded.refused = true;
        }
    }
}
