//! OAuth logins: the access token at hand, and one refresh at a time.

mod renewal;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::IntCounterVec;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use super::state::{Held, LoginState, Seen};
use super::{Login, OauthSettings, TokenFile};
use crate::contract::{BoxFuture, Container, FileVersion, SecretSource, System, SystemPorts};
use crate::credentials::{Fetched, Token, TokenSource};

/// One login and its token file. Lives over reloads, so that no two ever refresh it at once.
///
/// What is known is behind a lock that is never held while a disk or a host is waited for; files
/// are read and written on threads that may block.
pub struct OauthTokens {
    name: Arc<str>,
    settings: OauthSettings,
    /// The file itself, whatever links lead to it.
    file: PathBuf,
    client_secret: Option<Arc<dyn SecretSource>>,
    ports: SystemPorts,
    principal: Arc<System>,
    refreshes: IntCounterVec,
    known: Mutex<LoginState>,
    /// Held by the one refresh there is of this file.
    refreshing: Arc<AsyncMutex<()>>,
    /// Held by the one who reads or writes the file.
    at_file: Arc<AsyncMutex<()>>,
}

impl OauthTokens {
    /// Begins with what the file holds. Other tokens of the same file are those of an entry that
    /// a reload changed: their refresh may still be under way.
    pub fn new(
        name: &str,
        settings: &OauthSettings,
        ports: SystemPorts,
        refreshes: IntCounterVec,
        others: &[Arc<Self>],
    ) -> Self {
        let principal = System {
            name: "oauth",
            hosts: vec![settings.login.token_url.host()],
            trust_private: false,
        };
        let file = ports.files.real_path(&settings.token_file);
        let other = others.iter().find(|other| other.file == file);
        let refreshing = other.map(|other| Arc::clone(&other.refreshing));
        let secret = settings.client_secret.as_ref();
        let tokens = Self {
            name: name.into(),
            settings: settings.clone(),
            file,
            client_secret: secret.map(|secret| secret.source(&*ports.files)),
            ports,
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
    pub fn is(&self, name: &str, settings: &OauthSettings) -> bool {
        *self.name == *name && self.settings == *settings
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
        &self.settings.login
    }

    /// Works with the file on a thread that may block. Goes on though nobody waits for it.
    fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        at_file: OwnedMutexGuard<()>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let tokens = Arc::clone(self);
        self.ports.tasks.run_blocking(move || {
            let _at_file = at_file;
            work(&tokens)
        })
    }

    async fn at_file(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.at_file).lock_owned().await
    }

    /// Reads the file if it is another one by now. Blocks.
    fn look(&self) {
        let path = &self.settings.token_file;
        let version = self.known.lock().seen.as_ref().map(|s| s.version.clone());
        let read = self.ports.files.read(path, version.as_ref());
        let read = read.map_err(|error| error.to_string());
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
    fn take(&self, version: FileVersion, file: TokenFile) -> Result<(), String> {
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

    fn start(self: &Arc<Self>, alone: OwnedMutexGuard<()>) -> oneshot::Receiver<()> {
        let tokens = Arc::clone(self);
        self.ports.tasks.run(async move {
            let _alone = alone;
            tokens.renew().await;
        })
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

    fn fetch<'a>(&'a self, _container: &'a Arc<Container>) -> BoxFuture<'a, Fetched> {
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
