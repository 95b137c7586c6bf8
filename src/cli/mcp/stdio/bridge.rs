//! Sends each message of stdin to the gateway, and relays the responses.

mod receive;
mod response;
mod sessions;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::RpcError;
use addons::json::Members;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::lines::{Line, Output};
use super::mirrored_tools::MirroredTools;
use crate::cli::exit::warn;
use crate::cli::mcp::http_client::{HttpClient, MAX_MESSAGE};
use crate::cli::mcp::rpc;
use crate::mcp::{
    HEADER_MISMATCH, INVALID_REQUEST, Id, Message, MessageError, PARSE_ERROR, SERVER_ERROR,
    protocol_error, request_fields, write_response,
};
use response::{CallFailure, Response};
use sessions::{Session, Sessions};

/// Limit on the requests of the client that are under way. A further request is refused.
const MAX_CALLS: usize = 256;
/// Time limit for the gateway to accept a notification or a response.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);
/// A method whose response comes only when the subscription ends, so [`Bridge::finish`] cancels it.
const LISTEN: &str = "subscriptions/listen";
const CANCELLED: &str = "notifications/cancelled";
const INITIALIZED: &str = "notifications/initialized";

/// One client on stdin and stdout, and one gateway.
pub struct Bridge {
    pub http: Arc<HttpClient>,
    pub output: Output,
    pub sessions: Sessions,
    pub tools: MirroredTools,
    calls: Mutex<HashMap<Id, Call>>,
    /// The revision of the most recent request that named its revision, as requests do from
    /// 2026-07-28 on.
    modern: Mutex<Option<HeaderValue>>,
    tasks: TaskTracker,
}

/// A request under way.
struct Call {
    /// Whether the request's revision is 2026-07-28 or later. These revisions have no sessions, and
    /// closing the connection cancels the request.
    is_modern: bool,
    /// Whether the method is [`LISTEN`].
    is_listen: bool,
    cancelled: CancellationToken,
}

impl Bridge {
    pub fn new(http: Arc<HttpClient>, output: Output) -> Arc<Self> {
        Arc::new(Self {
            http,
            output,
            sessions: Sessions::default(),
            tools: MirroredTools::default(),
            calls: Mutex::default(),
            modern: Mutex::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Handles one line. A request other than `initialize` continues in the background. To keep the
    /// order of messages, waits for the response to `initialize`, and waits up to
    /// [`ACCEPT_TIMEOUT`] for the gateway to accept a notification or a response.
    pub async fn take(self: &Arc<Self>, line: Line) {
        let text = match line {
            Line::Text(text) => Bytes::from(text),
            Line::TooLong => {
                let sentence = format!("a message is longer than {MAX_MESSAGE} bytes");
                return self.refuse(None, INVALID_REQUEST, sentence).await;
            }
        };
        match Message::parse(&text, usize::MAX) {
            Ok(Message::Request { id, method, params }) => {
                self.request(id, &method, params, text).await;
            }
            Ok(Message::Notification { method, params }) => {
                self.notification(&method, params.as_deref(), text).await;
            }
            Ok(Message::Response { .. }) => self.deliver("a response", text).await,
            Err(error) => {
                let code = match error {
                    MessageError::Json(_) => PARSE_ERROR,
                    MessageError::Batch | MessageError::NotRpc { .. } => INVALID_REQUEST,
                };
                let sentence = error.to_string();
                let id = match error {
                    MessageError::NotRpc { id, .. } => id,
                    MessageError::Json(_) | MessageError::Batch => None,
                };
                self.refuse(id.as_ref(), code, sentence).await;
            }
        }
    }

    /// Cancels subscriptions, and waits at most `most` for other requests under way.
    pub async fn finish(&self, most: Duration) {
        for call in self.calls.lock().values().filter(|call| call.is_listen) {
            call.cancelled.cancel();
        }
        self.tasks.close();
        let _ = timeout(most, self.tasks.wait()).await;
    }

    /// Cancels all requests and ends the session at the gateway.
    pub async fn end(&self) {
        for call in self.calls.lock().values() {
            call.cancelled.cancel();
        }
        if let Some(fields) = self.sessions.end() {
            let _ = self.http.delete(fields).await;
        }
    }

    async fn refuse(&self, id: Option<&Id>, code: i64, sentence: impl Into<Cow<'static, str>>) {
        let outcome = Err(protocol_error(code, sentence));
        self.output.message(write_response(id, &outcome)).await;
    }

    async fn request(
        self: &Arc<Self>,
        id: Id,
        method: &Arc<str>,
        params: Option<Box<RawValue>>,
        text: Bytes,
    ) {
        if &**method == "initialize" {
            let response = self.initialize(&id, text).await;
            return self.respond(&id, response).await;
        }
        let revision = rpc::revision(params.as_deref());
        let revision = revision.and_then(|revision| HeaderValue::from_str(&revision).ok());
        if revision.is_some() {
            self.modern.lock().clone_from(&revision);
        }
        let call = Call {
            is_modern: revision.is_some(),
            is_listen: &**method == LISTEN,
            cancelled: CancellationToken::new(),
        };
        let cancelled = call.cancelled.clone();
        if let Err(sentence) = self.begin(&id, call) {
            return self.refuse(Some(&id), INVALID_REQUEST, sentence).await;
        }
        let (bridge, method) = (Arc::clone(self), Arc::clone(method));
        self.tasks.spawn(async move {
            let calling = async {
                match revision {
                    Some(revision) => {
                        let request = Request {
                            id: &id,
                            method: &method,
                            params: params.as_deref(),
                            text,
                        };
                        bridge.call_modern(&request, revision).await
                    }
                    None => bridge.call_legacy(&id, text).await,
                }
            };
            let response = cancelled.run_until_cancelled(calling).await;
            bridge.calls.lock().remove(&id);
            // A cancelled request gets no response.
            if let Some(response) = response {
                bridge.respond(&id, response).await;
            }
        });
    }

    fn begin(&self, id: &Id, call: Call) -> Result<(), String> {
        let mut calls = self.calls.lock();
        if calls.len() >= MAX_CALLS {
            return Err(format!("{MAX_CALLS} requests are already under way"));
        }
        if calls.contains_key(id) {
            return Err(format!("a request with the id {id} is already under way"));
        }
        calls.insert(id.clone(), call);
        Ok(())
    }

    async fn respond(&self, id: &Id, response: Result<Response, CallFailure>) {
        match response {
            Ok(response) => self.output.message(response.text).await,
            Err(failure) => {
                let outcome = Err(RpcError::from(failure));
                self.output
                    .message(write_response(Some(id), &outcome))
                    .await;
            }
        }
    }

    async fn call_modern(
        &self,
        request: &Request<'_>,
        revision: HeaderValue,
    ) -> Result<Response, CallFailure> {
        let response = self.send_modern(request, &revision).await?;
        let refused = response.outcome.as_ref().err();
        if &**request.method == "tools/call"
            && refused.is_some_and(|error| error.code == HEADER_MISMATCH)
        {
            // The call lacks header fields that mirror its arguments, probably because the client
            // has not listed the tools. The tool's definition says which arguments to mirror.
            self.list_tools(request.params, &revision).await?;
            return self.send_modern(request, &revision).await;
        }
        if &**request.method == "tools/list"
            && let Ok(result) = &response.outcome
        {
            self.tools.learn(result);
        }
        Ok(response)
    }

    async fn send_modern(
        &self,
        request: &Request<'_>,
        revision: &HeaderValue,
    ) -> Result<Response, CallFailure> {
        let mut fields = request_fields(revision.clone(), request.method, request.params);
        if &**request.method == "tools/call" {
            self.tools.add_fields(request.params, &mut fields);
        }
        let response = self.http.post(fields, request.text.clone()).await?;
        self.read(response, request.id, None).await
    }

    /// Lists the tools with the `_meta` of the client's request, to remember their definitions.
    async fn list_tools(
        &self,
        params: Option<&RawValue>,
        revision: &HeaderValue,
    ) -> Result<(), CallFailure> {
        let (id, method) = (Id::number(0), Arc::from("tools/list"));
        let mut cursor = None;
        for _ in 0..rpc::MAX_PAGES {
            let params = rpc::page_params(params, cursor.as_deref());
            let text = crate::mcp::write_request(Some(&id), &method, params.as_deref());
            let request = Request {
                id: &id,
                method: &method,
                params: params.as_deref(),
                text: text.into(),
            };
            let response = self.send_modern(&request, revision).await?;
            let Ok(result) = response.outcome else {
                return Ok(());
            };
            self.tools.learn(&result);
            cursor = rpc::next_cursor(&result);
            if cursor.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn call_legacy(self: &Arc<Self>, id: &Id, text: Bytes) -> Result<Response, CallFailure> {
        let session = self.sessions.current();
        match self.send_legacy(id, text.clone(), session.as_ref()).await {
            Err(CallFailure::SessionGone) => {
                let session = self.renew(session.as_ref()).await?;
                self.send_legacy(id, text, Some(&session)).await
            }
            called => called,
        }
    }

    async fn send_legacy(
        &self,
        id: &Id,
        text: Bytes,
        session: Option<&Arc<Session>>,
    ) -> Result<Response, CallFailure> {
        let fields = session.map(|session| session.fields()).unwrap_or_default();
        let response = self.http.post(fields, text).await?;
        self.read(response, id, session).await
    }

    async fn notification(self: &Arc<Self>, method: &str, params: Option<&RawValue>, text: Bytes) {
        if method == CANCELLED {
            let params = params.and_then(|params| Members::read(params).ok());
            let id = params.as_ref().and_then(|params| params.get("requestId"));
            let call = id.and_then(|id| self.cancel(id));
            if call.is_some_and(|is_modern| is_modern) {
                return;
            }
        }
        self.deliver(method, text).await;
        if method == INITIALIZED {
            self.listen();
        }
    }

    /// Cancels a request. Returns whether its revision is modern; `None` if the request is unknown.
    fn cancel(&self, id: &str) -> Option<bool> {
        let calls = self.calls.lock();
        let (_, call) = calls.iter().find(|(known, _)| known.as_json() == id)?;
        call.cancelled.cancel();
        Some(call.is_modern)
    }

    /// Posts a notification or a response. Warns if the gateway refuses the message or does not
    /// accept it within [`ACCEPT_TIMEOUT`]. `what` names the message in the warning.
    async fn deliver(self: &Arc<Self>, what: &str, text: Bytes) {
        let posting = async {
            let session = self.sessions.current();
            match self.post_accepted(text.clone(), session.as_ref()).await {
                Err(CallFailure::SessionGone) => {
                    let session = self.renew(session.as_ref()).await?;
                    self.post_accepted(text, Some(&session)).await
                }
                posted => posted,
            }
        };
        match timeout(ACCEPT_TIMEOUT, posting).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                let error = RpcError::from(failure);
                let why = error.message;
                warn(format_args!("the gateway did not accept {what}: {why}"));
            }
            Err(_elapsed) => warn(format_args!("the gateway did not accept {what} in time")),
        }
    }

    pub async fn post_accepted(
        &self,
        text: Bytes,
        session: Option<&Arc<Session>>,
    ) -> Result<(), CallFailure> {
        let fields = match session {
            Some(session) => session.fields(),
            None => self.modern_fields(),
        };
        let response = self.http.post(fields, text).await?;
        self.accepted(response, session).await
    }

    fn modern_fields(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        if let Some(revision) = self.modern.lock().clone() {
            fields.insert(crate::mcp::PROTOCOL_VERSION, revision);
        }
        fields
    }
}

/// A request, and its text as the client wrote it.
struct Request<'a> {
    id: &'a Id,
    method: &'a Arc<str>,
    params: Option<&'a RawValue>,
    text: Bytes,
}

impl From<CallFailure> for RpcError {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Refused(error) => error,
            other => protocol_error(SERVER_ERROR, other.to_string()),
        }
    }
}
