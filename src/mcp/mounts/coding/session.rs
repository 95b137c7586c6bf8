//! A session with a sidecar. Between calls, only idle connections are open.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use addons::contract::{BoxFuture, CallPermit, RpcError};
use addons::json::Members;
use addons::mcp::CodingSettings;
use bytes::Bytes;
use http::StatusCode;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::error::{invalid_params, method_not_found};
use super::super::{Described, Events, MountError, MountSession, Outcome};
use super::answer::Answered;
use super::bash::follow;
use super::endpoint::{Failure, Response, SidecarEndpoint};
use super::operation::{Operation, listed};
use super::progress::Progress;
use super::ready::{refused, until_ready};
use super::results;

/// A session with one sidecar. Ends with the lease, if the session belongs to one. Also ends if the
/// sidecar was lost and does not become ready again within `wait_for_ready`, or if the sidecar then
/// refuses the token.
pub struct CodingSession(Arc<Inner>);

struct Inner {
    endpoint: SidecarEndpoint,
    settings: CodingSettings,
    described: Described,
    ended: CancellationToken,
    /// The reason why the session ended, if the sidecar did not become ready again.
    lost: OnceLock<String>,
    /// Cleared when a request fails: another sidecar may listen by now.
    is_ready: AtomicBool,
    /// Counts the calls that the sidecar works on. Each holds a connection, and fails if the
    /// connection is closed.
    under_way: TaskTracker,
    /// Held by the task that waits until the sidecar is ready; other tasks wait for the lock.
    waiting: tokio::sync::Mutex<()>,
    /// The runtime of sessions.
    runtime: Handle,
}

impl CodingSession {
    /// Creates a session with a sidecar that is ready, in the calling runtime.
    pub fn new(
        endpoint: SidecarEndpoint,
        settings: CodingSettings,
        described: Described,
        ended: CancellationToken,
    ) -> Self {
        Self(Arc::new(Inner {
            endpoint,
            settings,
            described,
            ended,
            lost: OnceLock::new(),
            is_ready: AtomicBool::new(true),
            under_way: TaskTracker::new(),
            waiting: tokio::sync::Mutex::default(),
            runtime: Handle::current(),
        }))
    }
}

/// A call of a tool.
struct Call {
    operation: Operation,
    /// The arguments as judged by the chain.
    arguments: Box<str>,
    progress: Option<Progress>,
}

impl Call {
    fn read(permit: &CallPermit, events: Events) -> Result<Self, RpcError> {
        let no_object = || invalid_params("params is not an object");
        let params = permit.params().ok_or_else(no_object)?;
        let params = Members::read(params).map_err(|_| no_object())?;
        let operation = params.text("name");
        let operation = operation.as_deref().and_then(Operation::of_tool);
        let operation = operation.ok_or_else(|| invalid_params("Unknown tool"))?;
        // The chain judges null like missing arguments, and the sidecar requires an object. So null
        // is sent as `{}`.
        let arguments = params.get("arguments").map(str::trim);
        let meta = params.members("_meta").ok().flatten();
        let token = meta.as_ref().and_then(|meta| meta.get("progressToken"));
        Ok(Self {
            operation,
            arguments: arguments
                .filter(|text| *text != "null")
                .unwrap_or("{}")
                .into(),
            progress: token.map(|token| Progress::new(token, events)),
        })
    }
}

impl Inner {
    /// Whether the sidecar is still the process that was checked: a connection to it is open.
    /// Without a connection, the sidecar may have been restarted with other settings.
    fn is_same(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
            && (!self.under_way.is_empty() || self.endpoint.has_idle())
    }

    /// Waits until the sidecar is reachable and accepts the token, unless a connection to it is
    /// open.
    async fn ready(&self) -> Result<(), MountError> {
        if self.is_same() {
            return Ok(());
        }
        let _waiting = self.waiting.lock().await;
        if self.is_same() {
            return Ok(());
        }
        if let Some(why) = self.lost.get() {
            return Err(MountError::CannotStart(why.clone()));
        }
        match until_ready(&self.endpoint, &self.settings).await {
            Ok(_version) => {
                self.is_ready.store(true, Ordering::Release);
                Ok(())
            }
            Err(MountError::CannotStart(why)) => {
                // Never fails: only the holder of `waiting` sets `lost`.
                let _ = self.lost.set(why.clone());
                self.ended.cancel();
                Err(MountError::CannotStart(why))
            }
            Err(error) => Err(error),
        }
    }

    async fn call(self: &Arc<Self>, call: Call) -> Result<Outcome, MountError> {
        self.ready().await?;
        let _under_way = self.under_way.token();
        let Call {
            operation,
            arguments,
            progress,
        } = call;
        let body = Bytes::copy_from_slice(arguments.as_bytes());
        let response = match self.endpoint.post(operation.path(), body.clone()).await {
            // Nothing was sent, so the request can be sent once the sidecar is reachable again.
            Err(Failure::Unreachable(_)) => {
                self.is_ready.store(false, Ordering::Release);
                self.ready().await?;
                self.endpoint.post(operation.path(), body).await
            }
            other => other,
        };
        let result = match response {
            Ok(response) => self.read(response, operation, &arguments, progress).await?,
            Err(failure) => return Err(self.failed(failure)),
        };
        result.map(Ok).ok_or_else(|| {
            let sentence = "the coding sidecar answered with an invalid result of the operation";
            MountError::Protocol(sentence.to_owned())
        })
    }

    async fn read(
        self: &Arc<Self>,
        response: Response,
        operation: Operation,
        arguments: &str,
        progress: Option<Progress>,
    ) -> Result<Option<Box<RawValue>>, MountError> {
        let client = &self.endpoint.client;
        let is_stream = response.media_type == "application/x-ndjson";
        if response.status == StatusCode::UNAUTHORIZED {
            return Err(refused(&self.endpoint, response).await);
        }
        if operation == Operation::Bash && is_stream && response.status == StatusCode::OK {
            let followed = follow(client, response.body, progress).await;
            let (tail, ended) = followed.map_err(|failure| self.failed(failure))?;
            return Ok(results::of_bash(tail, ended));
        }
        let answered = Answered::read(client, response).await;
        Ok(match answered.map_err(|failure| self.failed(failure))? {
            Answered::Done(result) => results::of(operation, arguments, &result),
            Answered::Failed(sentence) => results::failed(&sentence),
        })
    }

    /// The error for a failed call. Unless the call was denied, starts checking the sidecar at
    /// once, so that health reports a sidecar that is gone.
    fn failed(self: &Arc<Self>, failure: Failure) -> MountError {
        let error = match failure {
            Failure::Denied(denial) => return MountError::Denied(denial),
            Failure::Unreachable(why) => {
                MountError::CannotStart(format!("the coding sidecar cannot be reached: {why}"))
            }
            Failure::BrokeOff(why) => MountError::Protocol(format!(
                "the coding sidecar ended or was cut off before it answered; the operation may \
                 have been carried out ({why})"
            )),
            Failure::Wrong(why) => MountError::Protocol(why),
        };
        self.is_ready.store(false, Ordering::Release);
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            tokio::select! {
                _ready = inner.ready() => {}
                () = inner.ended.cancelled() => {}
            }
        });
        error
    }

    /// Waits until calls must end. Calls must end when the lease ends, when the proxy stops, and
    /// when the gateway ends the session after a reload. If the session ended because the sidecar
    /// was lost, calls with an open connection continue.
    async fn must_end(&self) {
        let ended = async {
            self.ended.cancelled().await;
            if self.lost.get().is_some() {
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = ended => {}
            () = self.endpoint.client.ended() => {}
        }
    }

    async fn answer(
        self: &Arc<Self>,
        permit: CallPermit,
        events: Events,
    ) -> Result<Outcome, MountError> {
        match &**permit.method() {
            "tools/list" => listed().map(Ok).ok_or_else(|| {
                MountError::Protocol("the sidecar's tools cannot be listed".to_owned())
            }),
            "tools/call" => match Call::read(&permit, events) {
                Ok(call) => self.call(call).await,
                Err(error) => Ok(Err(error)),
            },
            _ => Ok(Err(method_not_found())),
        }
    }
}

impl MountSession for CodingSession {
    fn described(&self) -> &Described {
        &self.0.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                outcome = self.0.answer(permit, events) => outcome,
                () = self.0.must_end() => Err(MountError::Died { exit: None }),
            }
        })
    }

    /// Drops the notification: the sidecar takes none. A call is cancelled by closing its
    /// connection.
    fn notify<'a>(&'a self, _permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async { Ok(()) })
    }

    fn ended(&self) -> &CancellationToken {
        &self.0.ended
    }

    fn is_built_in(&self) -> bool {
        true
    }

    fn why_ended(&self) -> Option<String> {
        self.0.lost.get().cloned()
    }
}
