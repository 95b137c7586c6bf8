//! Sessions of legacy clients (up to 2025-11-25).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Bridge;
use super::response::{CallFailure, Response, next};
use crate::cli::exit::warn;
use crate::cli::mcp::http_client::MAX_MESSAGE;
use crate::cli::mcp::rpc::text_member;
use crate::mcp::{EventReader, Id, PROTOCOL_VERSION, SESSION_ID, write_request};

/// The shortest and the longest delay before the session's standalone stream is opened again,
/// unless the gateway sets a longer one.
const RECONNECT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// One session at the gateway.
pub struct Session {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// Cancelled when another session replaces this one, and when the bridge ends.
    ended: CancellationToken,
}

impl Session {
    /// The header fields of every request in the session.
    pub fn fields(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        if let Some(id) = &self.id {
            fields.insert(SESSION_ID, id.clone());
        }
        if let Some(version) = &self.version {
            fields.insert(PROTOCOL_VERSION, version.clone());
        }
        fields
    }

    pub fn has_id(&self) -> bool {
        self.id.is_some()
    }
}

/// The current session, and the state to open another one.
#[derive(Default)]
pub struct Sessions {
    current: Mutex<Option<Arc<Session>>>,
    /// The id and the text of the client's `initialize`.
    handshake: Mutex<Option<(Id, Bytes)>>,
    /// Held while another session is opened.
    renewing: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub fn current(&self) -> Option<Arc<Session>> {
        self.current.lock().clone()
    }

    /// Ends the session locally. Returns the header fields of the request that ends it at the
    /// gateway; `None` if there is no session or it has no id.
    pub fn end(&self) -> Option<HeaderMap> {
        let session = self.current.lock().take()?;
        session.ended.cancel();
        session.has_id().then(|| session.fields())
    }
}

impl Bridge {
    /// Ends the present session, sends the client's `initialize`, and starts another session.
    pub async fn initialize(&self, id: &Id, text: Bytes) -> Result<Response, CallFailure> {
        if let Some(fields) = self.sessions.end() {
            let _ = self.http.delete(fields).await;
        }
        *self.sessions.handshake.lock() = Some((id.clone(), text.clone()));
        self.shake_hands(id, text).await
    }

    async fn shake_hands(&self, id: &Id, text: Bytes) -> Result<Response, CallFailure> {
        let response = self.http.post(HeaderMap::new(), text).await?;
        let session_id = response.headers.get(SESSION_ID).cloned();
        let response = self.read(response, id, None).await?;
        if let Ok(result) = &response.outcome {
            let version = text_member(result, "protocolVersion");
            let version = version.and_then(|version| HeaderValue::from_str(&version).ok());
            let session = Session {
                id: session_id,
                version,
                ended: CancellationToken::new(),
            };
            *self.sessions.current.lock() = Some(Arc::new(session));
        }
        Ok(response)
    }

    /// Replaces a session that the gateway has ended, by sending the client's `initialize` again.
    /// If another task has already replaced the session, returns the new one. Fails if the client
    /// has not sent `initialize`, or if the gateway cannot be reached, refuses `initialize` or does
    /// not accept `notifications/initialized`.
    pub async fn renew(
        self: &Arc<Self>,
        gone: Option<&Arc<Session>>,
    ) -> Result<Arc<Session>, CallFailure> {
        let _renewing = self.sessions.renewing.lock().await;
        let current = self.sessions.current();
        let is_gone = |current: &Arc<Session>| gone.is_some_and(|gone| Arc::ptr_eq(gone, current));
        if let Some(current) = current.filter(|current| !is_gone(current)) {
            return Ok(current);
        }
        self.sessions.end();
        let handshake = self.sessions.handshake.lock().clone();
        let (id, text) = handshake.ok_or(CallFailure::SessionGone)?;
        self.shake_hands(&id, text).await?;
        let session = self.sessions.current().ok_or(CallFailure::SessionGone)?;
        let ready = write_request(None, "notifications/initialized", None);
        self.post_accepted(ready.into(), Some(&session)).await?;
        warn("the gateway ended the session; a new session was started");
        self.listen();
        Ok(session)
    }

    /// Starts a task that reads the session's standalone stream, if the gateway offers one. When
    /// the gateway ends the session, the task renews it.
    pub fn listen(self: &Arc<Self>) {
        let Some(session) = self.sessions.current() else {
            return;
        };
        let (bridge, ended) = (Arc::clone(self), session.ended.clone());
        tokio::spawn(async move {
            let listening = bridge.read_own_stream(&session);
            if ended.run_until_cancelled(listening).await == Some(true) {
                // Renewed although no request needs a session, since the client may only be
                // waiting for messages.
                if let Err(failure) = bridge.renew(Some(&session)).await {
                    warn(format_args!("the session cannot be renewed: {failure}"));
                }
            }
        });
    }

    /// Reads the standalone stream, over further connections if necessary, until the gateway
    /// refuses it or an event is too long. Returns whether the gateway has ended the session.
    async fn read_own_stream(&self, session: &Arc<Session>) -> bool {
        let mut reader = EventReader::new(MAX_MESSAGE);
        let (first, longest) = RECONNECT;
        let mut wait = first;
        loop {
            match self.open_stream(session, Some(&reader)).await {
                Ok(mut response) => {
                    reader.reconnect();
                    while let Ok(Some(mut piece)) = response.piece().await {
                        wait = first;
                        loop {
                            match next(&mut reader, &mut piece) {
                                Ok(Some(event)) => {
                                    self.relay(event, None).await;
                                }
                                Ok(None) => break,
                                Err(failure) => {
                                    warn(failure);
                                    return false;
                                }
                            }
                        }
                    }
                }
                Err(CallFailure::SessionGone) => return true,
                Err(CallFailure::Refused(_)) => return false,
                Err(_unreachable) => {}
            }
            sleep(reader.retry().unwrap_or(wait).max(wait)).await;
            wait = wait.saturating_mul(2).min(longest);
        }
    }
}
