//! OAuth logins: the access token at hand, and one refresh at a time.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use addons::contract::{Container, SecretSource, System};
use addons::credentials::oauth::{Login, Refusal, TokenFile};
use addons::credentials::{Fetched, Token, TokenSource};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use time::OffsetDateTime;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::task::{JoinHandle, spawn_blocking};
use zeroize::Zeroizing;

use super::login::{Held, LoginState, Seen};
use super::wipe;
use crate::config::OauthConfig;
use crate::secret_files;
use crate::secret_files::lock::FileLock;
use crate::secret_files::replacement::{self as token_file, Replacement, Version};
use crate::upstream::OutboundClient;

/// One login and its token file. Lives over reloads, so that no two ever refresh it at once.
///
/// What is known is behind a lock that is never held while a disk or a host is waited for; files
/// are read and written on threads that may block.
pub struct OauthTokens {
    name: Arc<str>,
    config: OauthConfig,
    /// The file itself, whatever links lead to it.
    file: PathBuf,
    client_secret: Option<Arc<dyn SecretSource>>,
    client: Arc<OutboundClient>,
    principal: Arc<System>,
    refreshes: IntCounterVec,
    known: Mutex<LoginState>,
    /// Held by the one refresh there is of this file.
    refreshing: Arc<AsyncMutex<()>>,
    /// Held by the one who reads or writes the file.
    at_file: Arc<AsyncMutex<()>>,
}

/// What a refresh sends, and what it needs once it is answered.
struct RefreshRequest {
    request: Request<Bytes>,
    sent: Zeroizing<String>,
    replacement: Replacement,
}

impl OauthTokens {
    /// Begins with what the file holds. Other tokens of the same file are those of an entry that
    /// a reload changed: their refresh may still be under way.
    pub fn new(
        name: &str,
        config: &OauthConfig,
        client: Arc<OutboundClient>,
        refreshes: IntCounterVec,
        others: &[Arc<Self>],
    ) -> Self {
        let principal = System {
            name: "oauth",
            hosts: vec![config.login.token_url.host()],
            trust_private: false,
        };
        let file = config.real_file();
        let other = others.iter().find(|other| other.file == file);
        let refreshing = other.map(|other| Arc::clone(&other.refreshing));
        let tokens = Self {
            name: name.into(),
            config: config.clone(),
            file,
            client_secret: config.client_secret.as_ref().map(secret_files::source),
            client,
            principal: Arc::new(principal),
            refreshes,
            known: Mutex::default(),
            refreshing: refreshing.unwrap_or_default(),
            at_file: Arc::default(),
        };
        tokens.look();
        tokens
    }

    /// Whether these are the tokens of such an entry.
    pub fn is(&self, name: &str, config: &OauthConfig) -> bool {
        *self.name == *name && self.config == *config
    }

    /// Whether the file could be read and written when it was last tried, and nobody has to log
    /// in anew. Never waits: has the file looked at for whoever asks next.
    pub fn is_well(self: &Arc<Self>) -> bool {
        let (is_well, is_fresh) = {
            let known = self.known.lock();
            (known.is_well(), known.is_fresh())
        };
        if !is_fresh && let Ok(at_file) = Arc::clone(&self.at_file).try_lock_owned() {
            self.aside(at_file, Self::look);
        }
        is_well
    }

    /// The account that the login in use belongs to, where its file names one.
    pub fn account(&self) -> Option<String> {
        let known = self.known.lock();
        known.held.as_ref()?.tokens.account.clone()
    }

    /// Waits for the refresh under way, if there is one: what it was answered must be kept.
    pub async fn rest(&self) {
        drop(self.refreshing.lock().await);
    }

    fn login(&self) -> &Login {
        &self.config.login
    }

    /// Works with the file on a thread that may block. Goes on though nobody waits for it.
    fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        at_file: OwnedMutexGuard<()>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let tokens = Arc::clone(self);
        spawn_blocking(move || {
            let _at_file = at_file;
            work(&tokens)
        })
    }

    async fn at_file(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.at_file).lock_owned().await
    }

    /// Reads the file if it is another one by now. Blocks.
    fn look(&self) {
        let path = &self.config.token_file;
        let version = self.known.lock().seen.as_ref().map(|s| s.version.clone());
        let read = token_file::read(path, version.as_ref()).map_err(|error| error.to_string());
        let taken = read.and_then(|read| match read {
            Some(read) => self.take(read.version, TokenFile::parse(&read.text)?),
            None => Ok(()),
        });
        let shown = |why| format!("{}: {why}", path.display());
        let mut known = self.known.lock();
        known.looked = Some(Instant::now());
        known.unreadable = taken.err().map(shown);
    }

    /// Other tokens are a new login. The same ones were backed up, or got another mode: those in
    /// use may be newer.
    fn take(&self, version: Version, file: TokenFile) -> Result<(), String> {
        let tokens = self.login().tokens(&file)?;
        let is_known = |known: &LoginState| known.seen.as_ref().is_some_and(|s| s.tokens == tokens);
        if is_known(&self.known.lock()) {
            let mut known = self.known.lock();
            known.seen = Some(Seen { version, tokens });
            let is_newest = !known.owed;
            if let Some(held) = known.held.as_mut().filter(|_| is_newest) {
                held.file = file;
            }
            return Ok(());
        }
        let (held, _) = self.ready(file)?;
        let mut known = self.known.lock();
        known.seen = Some(Seen { version, tokens });
        known.begin(held);
        Ok(())
    }

    /// Makes tokens ready to be sent, or says why they cannot be.
    fn ready(&self, file: TokenFile) -> Result<(Held, Result<(), String>), String> {
        let tokens = self.login().tokens(&file)?;
        let earlier = self.known.lock().earlier();
        let earlier = earlier.iter().map(|secret| secret.as_str());
        let made = match &tokens.access {
            Some(access) => Token::new(&self.name, access, earlier),
            None => Err("it holds no access token".to_owned()),
        };
        let account = self.login().account_field().zip(tokens.account.as_ref());
        let made = made.and_then(|token| match account {
            Some((field, account)) => token.with_field(field.clone(), account),
            None => Ok(token),
        });
        let (token, usable) = match made {
            Ok(token) => (Some(Arc::new(token)), Ok(())),
            Err(why) => (None, Err(why)),
        };
        Ok((Held::of(file, tokens, token), usable))
    }

    /// What a flow waits for that has no token at hand.
    async fn wait(self: &Arc<Self>) -> Fetched {
        let at_file = self.at_file().await;
        if self.known.lock().is_fresh() {
            drop(at_file);
        } else {
            let looked = self.aside(at_file, Self::look).await;
            looked.map_err(|_| "its file could not be looked at".to_owned())?;
        }
        let (answer, is_due) = {
            let known = self.known.lock();
            (known.answer(), known.is_due())
        };
        if let Some(answer) = answer {
            if is_due {
                self.renew_aside();
            }
            return answer;
        }
        let alone = Arc::clone(&self.refreshing).lock_owned().await;
        if let Some(answer) = self.known.lock().answer() {
            return answer;
        }
        // On its own: a client that goes away in the middle must not lose what the endpoint
        // answers, for the old refresh token may be spent by then.
        let refreshed = self.start(alone).await;
        refreshed.map_err(|_| "the refresh broke off".to_owned())?;
        let answer = self.known.lock().answer();
        answer.unwrap_or_else(|| Err("its file was replaced meanwhile".to_owned()))
    }

    /// Begins a refresh for which nobody waits, unless one is under way.
    fn renew_aside(self: &Arc<Self>) {
        if let Ok(alone) = Arc::clone(&self.refreshing).try_lock_owned() {
            self.start(alone);
        }
    }

    fn start(self: &Arc<Self>, alone: OwnedMutexGuard<()>) -> JoinHandle<()> {
        let tokens = Arc::clone(self);
        tokio::spawn(async move {
            let _alone = alone;
            tokens.renew().await;
        })
    }

    /// Refreshes, one at a time for all processes that share the file: the next one finds these
    /// tokens in it, and asks for none.
    async fn renew(self: &Arc<Self>) {
        let file = self.file.clone();
        let _lock = match spawn_blocking(move || FileLock::acquire(&file)).await {
            Ok(Ok(lock)) => lock,
            Ok(Err(why)) => return self.failed(transient(why)),
            Err(_) => return self.failed(transient("the refresh broke off".to_owned())),
        };
        let prepared = self.aside(self.at_file().await, Self::prepare).await;
        let errand = match prepared {
            Ok(Ok(Some(errand))) => errand,
            Ok(Ok(None)) => return,
            Ok(Err(why)) => return self.failed(transient(why)),
            Err(_) => return self.failed(transient("the refresh broke off".to_owned())),
        };
        let RefreshRequest {
            request,
            sent,
            replacement,
        } = errand;
        let response = match self.client.send(&self.principal, request).await {
            Ok(response) => response,
            Err(error) => return self.failed(transient(error.to_string())),
        };
        let keep = move |tokens: &Self| tokens.keep(&sent, replacement, response);
        if self.aside(self.at_file().await, keep).await.is_err() {
            self.failed(transient("the refresh broke off".to_owned()));
        }
    }

    /// What to ask for, if it is due. Tokens that the file does not have yet are written first:
    /// no others are asked for while these could be lost. Blocks.
    fn prepare(&self) -> Result<Option<RefreshRequest>, String> {
        self.look();
        let (refresh, owed) = {
            let known = self.known.lock();
            let Some(held) = known.held.as_ref().filter(|_| known.is_due()) else {
                return Ok(None);
            };
            (held.tokens.refresh.clone(), known.owed)
        };
        let replacement = Replacement::begin(&self.config.token_file).map_err(|error| {
            let path = self.config.token_file.display();
            format!("{path} cannot be rewritten, so it is not refreshed: {error}")
        })?;
        if owed {
            self.write(replacement);
            return Ok(None);
        }
        let sent = refresh.ok_or("there is no refresh token: log in with the tool again")?;
        let secret = self.client_secret.as_ref();
        let secret = secret.map(|source| source.read()).transpose()?;
        let secret = secret.as_ref().map(|secret| secret.as_str());
        let request = self.login().refresh_request(&sent, secret)?;
        Ok(Some(RefreshRequest {
            request,
            sent,
            replacement,
        }))
    }

    /// Keeps the new tokens, in memory in any case: the old refresh token may work no more. Blocks.
    fn keep(&self, sent: &str, replacement: Replacement, response: Response<Bytes>) {
        self.look();
        let (head, body) = response.into_parts();
        let refreshed = self.refreshed(sent, head.status, &body);
        wipe(body);
        let renewed = refreshed.and_then(|file| match file {
            Some(file) => self.ready(file).map(Some).map_err(transient),
            None => Ok(None),
        });
        match renewed {
            Ok(Some((held, usable))) => {
                self.known.lock().renew(held);
                self.write(replacement);
                if let Err(why) = usable {
                    let why = format!("the token endpoint's answer cannot be used: {why}");
                    self.failed(transient(why));
                }
            }
            Ok(None) => {
                tracing::info!(credential = %self.name, "somebody logged in anew during a refresh");
            }
            Err(refusal) => self.failed(refusal),
        }
    }

    /// The file with the new tokens. None where the file is that of another login by now: what
    /// was asked for belongs to the old one.
    fn refreshed(
        &self,
        sent: &str,
        status: StatusCode,
        body: &[u8],
    ) -> Result<Option<TokenFile>, Refusal> {
        let known = self.known.lock();
        let seen = known.seen.as_ref().and_then(|s| s.tokens.refresh.as_ref());
        let is_same = seen.is_some_and(|seen| seen.as_str() == sent);
        let Some(held) = known.held.as_ref().filter(|_| is_same) else {
            return Ok(None);
        };
        let now = OffsetDateTime::now_utc();
        self.login()
            .refreshed(&held.file, status, body, now)
            .map(Some)
    }

    /// Writes the tokens in use to the file. Blocks.
    fn write(&self, mut replacement: Replacement) {
        let text = match &self.known.lock().held {
            Some(held) => held.file.text(),
            None => return,
        };
        let filled = replacement.fill(text.as_bytes());
        // Once more right before it is replaced: the disk may have taken its time.
        self.look();
        let unreadable = {
            let known = self.known.lock();
            if !known.owed {
                return;
            }
            known.unreadable.clone()
        };
        let written = match (filled, unreadable) {
            (Ok(()), None) => replacement.put().map_err(|error| error.to_string()),
            (Err(error), _) => Err(error.to_string()),
            (_, Some(why)) => Err(why),
        };
        match written {
            Ok(version) => {
                self.known.lock().wrote(version);
                self.count("ok");
            }
            Err(why) => {
                let path = self.config.token_file.display();
                self.failed(transient(format!(
                    "{path} could not be rewritten, and the new tokens are lost with this process: {why}"
                )));
            }
        }
    }

    fn failed(&self, refusal: Refusal) {
        let (name, why) = (&self.name, &refusal.why);
        tracing::warn!(credential = %name, permanent = refusal.permanent, "not refreshed: {why}");
        self.count(if refusal.permanent {
            "refused"
        } else {
            "failed"
        });
        self.known.lock().failed(refusal);
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

/// What the chain asks.
pub struct OauthSource(pub Arc<OauthTokens>);

impl TokenSource for OauthSource {
    fn is_for(&self, _container: &Container) -> bool {
        true
    }

    fn at_hand(&self, _container: &Arc<Container>) -> Option<Arc<Token>> {
        let tokens = &self.0;
        let (token, is_fresh, is_due) = {
            let known = tokens.known.lock();
            (known.to_send()?, known.is_fresh(), known.is_due())
        };
        // While somebody is at the file nobody else need look.
        if !is_fresh && tokens.at_file.try_lock().is_ok() {
            return None;
        }
        if is_due {
            tokens.renew_aside();
        }
        Some(token)
    }

    fn fetch<'a>(
        &'a self,
        _container: &'a Arc<Container>,
    ) -> Pin<Box<dyn Future<Output = Fetched> + Send + 'a>> {
        Box::pin(self.0.wait())
    }

    fn account(&self) -> Option<String> {
        self.0.account()
    }

    fn refused(&self, _container: &Container, token: &Arc<Token>) {
        if let Some(held) = &mut self.0.known.lock().held
            && held
                .token
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, token))
        {
            held.refused = true;
        }
    }
}

#[cfg(test)]
mod tests;
