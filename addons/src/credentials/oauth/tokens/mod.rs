//! OAuth logins: the current access token, and at most one refresh at a time.

mod renewal;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::IntCounterVec;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use super::state::{CurrentTokens, FileTokens, LoginState};
use super::{Login, OauthSettings, TokenFile};
use crate::contract::{BoxFuture, Container, FileVersion, SecretSource, System, SystemPorts};
use crate::credentials::{Fetched, Token, TokenSource};

/// One login and its token file. A reload keeps this source if the entry has the same name and the
/// same `oauth` settings.
///
/// The lock on `known` is never held during I/O. Files are read and written on blocking threads.
pub struct OauthTokens {
    name: Arc<str>,
    settings: OauthSettings,
    /// The real path of the file, with symbolic links resolved.
    file: PathBuf,
    client_secret: Option<Arc<dyn SecretSource>>,
    ports: SystemPorts,
    principal: Arc<System>,
    refreshes: IntCounterVec,
    known: Mutex<LoginState>,
    /// Held during a refresh. Shared by all sources of this file.
    refreshing: Arc<AsyncMutex<()>>,
    /// Held while this source reads or writes the file, except in [`OauthTokens::new`].
    file_access: Arc<AsyncMutex<()>>,
    /// Earlier sources of this file. They may hold tokens that they could not write to the file.
    earlier: Vec<Weak<Self>>,
}

impl OauthTokens {
    /// Reads the token file; blocks. `others` are the existing sources. After a reload that changed
    /// the entry, one of these may be the entry's former source, with a refresh under way. Sources
    /// of the same file therefore share the refresh lock, so that two refreshes of one login do not
    /// overlap, and a source takes over the tokens that another one could not write to the file: the
    /// refresh token in the file may be spent.
    pub fn new(
        name: &str,
        settings: &OauthSettings,
        ports: SystemPorts,
        refreshes: IntCounterVec,
        others: &[Arc<Self>],
    ) -> Self {
        let principal = System {
            name: "oauth".into(),
            hosts: vec![settings.login.token_url.host()],
            trust_private: false,
            url_secrets: settings.login.token_url.secrets.clone(),
        };
        let file = ports.files.real_path(&settings.token_file);
        let others: Vec<_> = others.iter().filter(|other| other.file == file).collect();
        let refreshing = others.first().map(|other| Arc::clone(&other.refreshing));
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
            file_access: Arc::default(),
            earlier: others.into_iter().map(Arc::downgrade).collect(),
        };
        tokens.take_over();
        tokens.reread();
        tokens
    }

    /// Takes over the tokens that earlier sources of the file could not write, unless this source
    /// has read newer ones. Blocks.
    fn take_over(&self) {
        for earlier in self.earlier.iter().filter_map(Weak::upgrade) {
            let (text, in_file) = {
                let known = earlier.known.lock();
                let unwritten = known.current.as_ref().filter(|_| known.unwritten);
                let (Some(unwritten), Some(in_file)) = (unwritten, &known.in_file) else {
                    continue;
                };
                (unwritten.file.text(), in_file.clone())
            };
            // Fails if the entry now has another format.
            let file = TokenFile::parse(text.as_bytes());
            let Ok((current, _)) = file.and_then(|file| self.ready(file)) else {
                continue;
            };
            let mut known = self.known.lock();
            let has_read = known.in_file.as_ref();
            let has_newer = has_read.is_some_and(|own| own.tokens != in_file.tokens);
            if !known.unwritten && !has_newer {
                known.in_file.get_or_insert(in_file);
                known.renew(current);
            }
        }
    }

    /// Whether the tokens in use must still be written to the file. If so, tries to write them,
    /// unless an earlier attempt failed just now.
    pub fn is_unwritten(self: &Arc<Self>) -> bool {
        let (is_unwritten, is_due) = {
            let known = self.known.lock();
            (known.unwritten, known.is_due())
        };
        if is_unwritten && is_due {
            self.renew_in_background();
        }
        is_unwritten
    }

    /// Whether these tokens belong to an entry with this name and these settings.
    pub fn is(&self, name: &str, settings: &OauthSettings) -> bool {
        *self.name == *name && self.settings == *settings
    }

    /// Whether the file could be read at the latest check, and the latest refresh did not fail.
    /// Never waits. If the latest check is over a second old, starts another check, whose result
    /// only later calls return.
    pub fn is_valid(self: &Arc<Self>) -> bool {
        let (is_valid, is_fresh) = {
            let known = self.known.lock();
            (known.is_valid(), known.is_fresh())
        };
        if !is_fresh && let Ok(file_access) = Arc::clone(&self.file_access).try_lock_owned() {
            self.with_file(file_access, Self::reread);
        }
        is_valid
    }

    /// Waits for the refresh under way, if any, since the tokens that it yields must be stored.
    pub async fn drain(&self) {
        drop(self.refreshing.lock().await);
    }

    fn login(&self) -> &Login {
        &self.settings.login
    }

    /// Runs `work` on a blocking thread, then releases `file_access`. Dropping the receiver does
    /// not stop `work`.
    fn with_file<T: Send + 'static>(
        self: &Arc<Self>,
        file_access: OwnedMutexGuard<()>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let tokens = Arc::clone(self);
        self.ports.tasks.run_blocking(move || {
            let _at_file = file_access;
            work(&tokens)
        })
    }

    async fn file_access(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.file_access).lock_owned().await
    }

    /// Reads the file if it changed. Blocks.
    fn reread(&self) {
        let path = &self.settings.token_file;
        let version = self
            .known
            .lock()
            .in_file
            .as_ref()
            .map(|s| s.version.clone());
        let read = self.ports.files.read(path, version.as_ref());
        let read = read.map_err(|error| error.to_string());
        let taken = read.and_then(|read| match read {
            Some(read) => self.take(read.version, TokenFile::parse(&read.text)?),
            None => Ok(()),
        });
        let shown = |why| format!("{}: {why}", path.display());
        let unreadable = taken.err().map(shown);
        let mut known = self.known.lock();
        known.checked = Some(Instant::now());
        if let Some(why) = &unreadable
            && known.unreadable != unreadable
        {
            tracing::warn!(credential = %self.name, %why, "a login has no usable tokens");
        }
        known.unreadable = unreadable;
    }

    /// Takes over a file that was read. If its tokens differ from those that the source has read or
    /// written most recently, the file holds a new login. Otherwise only other fields or the
    /// metadata changed, and the tokens in use may be newer than those in the file. Fails if the
    /// file holds no tokens.
    fn take(&self, version: FileVersion, file: TokenFile) -> Result<(), String> {
        let tokens = self.login().tokens(&file)?;
        let is_known =
            |known: &LoginState| known.in_file.as_ref().is_some_and(|s| s.tokens == tokens);
        if is_known(&self.known.lock()) {
            let mut known = self.known.lock();
            known.in_file = Some(FileTokens { version, tokens });
            let is_newest = !known.unwritten;
            if let Some(current) = known.current.as_mut().filter(|_| is_newest) {
                current.file = file;
            }
            return Ok(());
        }
        let (current, _) = self.ready(file)?;
        let mut known = self.known.lock();
        known.in_file = Some(FileTokens { version, tokens });
        known.begin(current);
        Ok(())
    }

    /// Prepares the tokens of a file to be sent. The outer error says why the file has no tokens,
    /// the inner error why they cannot be sent.
    fn ready(&self, file: TokenFile) -> Result<(CurrentTokens, Result<(), String>), String> {
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
        Ok((CurrentTokens::of(file, tokens, token), usable))
    }

    /// Reads the file unless it was checked within the last second.
    async fn look(self: &Arc<Self>) -> Result<(), String> {
        let file_access = self.file_access().await;
        if self.known.lock().is_fresh() {
            return Ok(());
        }
        let reread = self.with_file(file_access, Self::reread).await;
        reread.map_err(|_| "the task that reads the token file ended without a result".to_owned())
    }

    /// Waits for a token: looks at the file, and refreshes the login if there is no token to send.
    async fn wait(self: &Arc<Self>) -> Fetched {
        self.look().await?;
        let (result, is_due) = {
            let known = self.known.lock();
            (known.result(), known.is_due())
        };
        if let Some(result) = result {
            if is_due {
                self.renew_in_background();
            }
            return result;
        }
        let guard = Arc::clone(&self.refreshing).lock_owned().await;
        if let Some(result) = self.known.lock().result() {
            return result;
        }
        // In a separate task: if the client disconnects, the tokens of the response must still be
        // stored, since the old refresh token may be spent.
        let refreshed = self.start(guard).await;
        refreshed.map_err(|_| "the task that refreshes the token ended without a result")?;
        let result = self.known.lock().result();
        result.unwrap_or_else(|| Err("the token file was replaced during the refresh".to_owned()))
    }

    /// Starts a refresh that no flow waits for, unless one is under way.
    fn renew_in_background(self: &Arc<Self>) {
        if let Ok(guard) = Arc::clone(&self.refreshing).try_lock_owned() {
            self.start(guard);
        }
    }

    fn start(self: &Arc<Self>, guard: OwnedMutexGuard<()>) -> oneshot::Receiver<()> {
        let tokens = Arc::clone(self);
        self.ports.tasks.run(async move {
            let _guard = guard;
            tokens.renew().await;
        })
    }
}

impl TokenSource for Arc<OauthTokens> {
    fn current(&self, _container: &Arc<Container>) -> Option<Arc<Token>> {
        let (token, is_fresh, is_due) = {
            let known = self.known.lock();
            (known.to_send()?, known.is_fresh(), known.is_due())
        };
        // The latest check of the file is too old, so the flow must call `fetch`, which checks the
        // file first. If another task is reading or writing the file, the current token is sent.
        if !is_fresh && self.file_access.try_lock().is_ok() {
            return None;
        }
        if is_due {
            self.renew_in_background();
        }
        Some(token)
    }

    fn fetch<'a>(&'a self, _container: &'a Arc<Container>) -> BoxFuture<'a, Fetched> {
        Box::pin(self.wait())
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            self.look().await?;
            // Without a result, the next request refreshes the login first.
            let result = self.known.lock().result();
            result.map_or(Ok(()), |token| token.map(drop))
        })
    }

    fn account(&self) -> Option<String> {
        let known = self.known.lock();
        known.current.as_ref()?.tokens.account.clone()
    }

    fn refused(&self, _container: &Container, token: &Arc<Token>) {
        if let Some(current) = &mut self.known.lock().current
            && current
                .token
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, token))
        {
            current.refused = true;
        }
    }
}

#[cfg(test)]
mod tests;
