//! Refreshes a login: sends one request to its token endpoint, and writes the tokens of the
//! response to its file.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use time::OffsetDateTime;
use tokio::sync::oneshot::error::RecvError;
use zeroize::Zeroizing;

use super::OauthTokens;
use crate::contract::Replacement;
use crate::credentials::oauth::{Refusal, TokenFile};
use crate::credentials::wiped::wipe_bytes;

/// A refresh request, and the file that will hold the tokens of its response.
pub(super) struct RefreshRequest {
    pub(super) request: Request<Bytes>,
    /// The refresh token in the request.
    pub(super) sent: Zeroizing<String>,
    /// Created before the request is sent: many refresh tokens work only once, and must not be
    /// spent if their successor cannot be stored.
    pub(super) replacement: Box<dyn Replacement>,
}

impl OauthTokens {
    /// Refreshes the login. A lock on the file admits one process at a time. After a successful
    /// refresh, the next process finds the new tokens in the file and sends no request.
    pub(super) async fn renew(self: &Arc<Self>) {
        if let Err(refusal) = self.try_to_renew().await {
            self.failed(refusal);
        }
    }

    async fn try_to_renew(self: &Arc<Self>) -> Result<(), Refusal> {
        let (files, file) = (Arc::clone(&self.ports.files), self.file.clone());
        let locked = self.ports.tasks.run_blocking(move || files.lock(&file));
        let locked = locked.await.map_err(no_result("locks the token file"))?;
        let _lock = locked.map_err(transient)?;
        let prepared = self.with_file(self.file_access().await, Self::prepare);
        let prepared = prepared.await.map_err(no_result("prepares the refresh"))?;
        let Some(request) = prepared.map_err(transient)? else {
            return Ok(());
        };
        let sent = self.ports.outbound.send(&self.principal, request.request);
        let response = sent.await.map_err(|error| transient(error.to_string()))?;
        let (refresh, replacement) = (request.sent, request.replacement);
        let keep = move |tokens: &Self| tokens.keep(&refresh, replacement, response);
        let kept = self.with_file(self.file_access().await, keep);
        kept.await.map_err(no_result("stores the new tokens"))
    }

    /// The refresh request; `None` if no refresh is due. If the tokens in use are not in the file
    /// yet, writes the file instead and returns `None`, since a further refresh could lose these
    /// tokens. Blocks.
    pub(super) fn prepare(&self) -> Result<Option<RefreshRequest>, String> {
        self.take_over();
        self.reread();
        let (refresh, unwritten) = {
            let known = self.known.lock();
            let Some(current) = known.current.as_ref().filter(|_| known.is_due()) else {
                return Ok(None);
            };
            (current.tokens.refresh.clone(), known.unwritten)
        };
        let path = &self.settings.token_file;
        let replacement = self.ports.files.replace(path).map_err(|error| {
            let path = path.display();
            format!("{path} cannot be rewritten, so the login is not refreshed: {error}")
        })?;
        if unwritten {
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

    /// Stores the tokens of the response in memory and in the file, unless the file holds a new
    /// login. The tokens stay in memory even if the file cannot be written, since the old refresh
    /// token may be spent. Blocks.
    pub(super) fn keep(
        &self,
        sent: &str,
        replacement: Box<dyn Replacement>,
        response: Response<Bytes>,
    ) {
        self.reread();
        let (head, body) = response.into_parts();
        let refreshed = self.refreshed(sent, head.status, &body);
        wipe_bytes(body);
        let renewed = refreshed.and_then(|file| match file {
            Some(file) => self.ready(file).map(Some).map_err(transient),
            None => Ok(None),
        });
        match renewed {
            Ok(Some((current, usable))) => {
                self.known.lock().renew(current);
                self.write(replacement);
                if let Err(why) = usable {
                    let why = format!("the token endpoint's answer cannot be used: {why}");
                    self.failed(transient(why));
                }
            }
            Ok(None) => {
                tracing::info!(credential = %self.name, "a new login replaced the tokens during a refresh");
            }
            Err(refusal) => self.failed(refusal),
        }
    }

    /// The content of the file with the new tokens; `None` if a new login replaced the refresh
    /// token in the file during the request.
    pub(super) fn refreshed(
        &self,
        sent: &str,
        status: StatusCode,
        body: &[u8],
    ) -> Result<Option<TokenFile>, Refusal> {
        let known = self.known.lock();
        let seen = known
            .in_file
            .as_ref()
            .and_then(|s| s.tokens.refresh.as_ref());
        let is_same = seen.is_some_and(|seen| seen.as_str() == sent);
        let Some(current) = known.current.as_ref().filter(|_| is_same) else {
            return Ok(None);
        };
        let now = OffsetDateTime::now_utc();
        self.login()
            .refreshed(&current.file, status, body, now)
            .map(Some)
    }

    /// Writes the tokens in use to the file, unless the file holds them already or holds a new
    /// login. Blocks.
    pub(super) fn write(&self, mut replacement: Box<dyn Replacement>) {
        let text = match &self.known.lock().current {
            Some(current) => current.file.text(),
            None => return,
        };
        let filled = replacement.fill(text.as_bytes());
        // Read again right before the replacement: a tool may have stored a new login while `fill`
        // wrote to a slow disk.
        self.reread();
        let unreadable = {
            let known = self.known.lock();
            if !known.unwritten {
                return;
            }
            known.unreadable.clone()
        };
        let written = match (filled, unreadable) {
            (Ok(()), None) => replacement.commit().map_err(|error| error.to_string()),
            (Err(error), _) => Err(error.to_string()),
            (_, Some(why)) => Err(why),
        };
        match written {
            Ok(version) => {
                self.known.lock().wrote(version);
                self.count("ok");
            }
            Err(why) => {
                let path = self.settings.token_file.display();
                self.failed(transient(format!(
                    "{path} could not be rewritten, so the new tokens are only in memory: {why}"
                )));
            }
        }
    }

    fn failed(&self, refusal: Refusal) {
        let (name, why) = (&self.name, &refusal.why);
        tracing::warn!(credential = %name, permanent = refusal.permanent, "OAuth refresh failed: {why}");
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

/// Makes the failure if a task panicked; `work` says what the task does.
fn no_result(work: &str) -> impl FnOnce(RecvError) -> Refusal {
    move |_| transient(format!("the task that {work} ended without a result"))
}

fn transient(why: String) -> Refusal {
    Refusal {
        permanent: false,
        why,
    }
}
