//! A server of 2026-07-28 over HTTP: requests are independent, without a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit, RpcError};
use http::HeaderValue;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer::{Answered, EventStream, StreamEnd, outcome_of, read_accepted};
use super::headers::{fields_of, request_fields};
use super::peer::Inbox;
use super::wire::Wire;
use super::{HttpTransport, cannot_start, legacy, mirrored_params};
use crate::http::Answer;
use crate::mcp::error::HEADER_MISMATCH;
use crate::mcp::event::Events;
use crate::mcp::message::{Id, Message, Outcome, write_request};
use crate::mcp::mounts::dropped::Reason;
use crate::mcp::mounts::handshake::{Discovered, discover_params};
use crate::mcp::mounts::{Described, List, MountError, MountSession, Opening};
use crate::mcp::version::Version;

const VERSION: HeaderValue = HeaderValue::from_static(Version::V2026_07_28.as_str());

/// A server's response to `server/discover`.
pub enum Probed {
    /// The description of a modern server.
    Modern(Discovered),
    /// A JSON-RPC error.
    Refused(RpcError),
    /// A response that no modern server sends.
    NotModern(MountError),
}

/// Sends `server/discover`, to learn the revisions of a server and, from redirects, its path. Fails
/// in these cases:
///
/// - The server cannot be reached.
/// - A rule or a limit of the proxy denies the request or its response.
/// - The response is an event stream that is malformed or exceeds a limit.
/// - The status is 401, 403 or 5xx, and the body is not a JSON-RPC error.
pub async fn probe(wire: &mut Wire, opening: &Opening) -> Result<Probed, MountError> {
    let id = Id::number(0);
    let params = discover_params(&opening.capabilities)?;
    let message = write_request(Some(&id), "server/discover", Some(&params));
    let fields = fields_of(VERSION, "server/discover", None);
    let mut path = wire.target.path.clone();
    let answer = wire.post_first(&mut path, fields, message).await;
    wire.target.path = path;
    let answer = answer.map_err(cannot_start)?;
    let status = answer.status;
    let read = match Answered::read(wire, answer).await {
        Ok(Answered::Message(message)) => outcome_of(message, &id).ok(),
        Ok(Answered::Stream(stream)) => legacy::first_outcome(stream, &id).await?,
        Ok(Answered::Accepted) => None,
        Err(error @ MountError::Denied(_)) => return Err(error),
        // These statuses do not reveal the server's era.
        Err(error) if status.is_server_error() || matches!(status.as_u16(), 401 | 403) => {
            return Err(error);
        }
        Err(error) => return Ok(Probed::NotModern(error)),
    };
    Ok(match read {
        Some(Ok(result)) => match Discovered::read(&wire.server, &result) {
            Ok(discovered) => Probed::Modern(discovered),
            Err(error) => Probed::NotModern(error),
        },
        Some(Err(error)) => Probed::Refused(error),
        None => Probed::NotModern(MountError::Protocol(
            "the server did not answer server/discover".to_owned(),
        )),
    })
}

/// A "session" with a modern server: the state that its requests share.
pub struct ModernSession {
    wire: Wire,
    described: Described,
    inbox: Inbox,
    next_id: AtomicU64,
    timeout: Duration,
}

impl ModernSession {
    pub fn new(
        transport: &HttpTransport,
        opening: &Opening,
        wire: Wire,
        described: Described,
    ) -> Arc<Self> {
        Arc::new(Self {
            wire,
            described,
            inbox: transport.inbox(opening),
            next_id: AtomicU64::new(1),
            timeout: transport.timeout(),
        })
    }

    async fn post(&self, permit: &CallPermit, id: Option<&Id>) -> Result<Answer, MountError> {
        let (method, params) = (permit.method(), permit.params());
        let definition = permit.definition();
        let mut fields = match definition {
            // The core wrote this name into the params, so they need not be parsed.
            Some(called) if &**method == "tools/call" => {
                fields_of(VERSION, method, Some(&called.name))
            }
            _ => request_fields(VERSION, method, params),
        };
        if let Some(definition) = definition.filter(|definition| definition.may_name_fields) {
            let added = mirrored_params::add(&definition.raw, params, &mut fields);
            added.map_err(MountError::Write)?;
        }
        let message = write_request(id, method, params);
        let path = &self.wire.target.path;
        let answer = self.wire.post(path, fields, message).await;
        answer.map_err(MountError::Denied)
    }

    async fn call(&self, permit: &CallPermit, events: &Events) -> Result<Outcome, MountError> {
        let id = Id::number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let answer = self.post(permit, Some(&id)).await?;
        let outcome = match Answered::read(&self.wire, answer).await? {
            Answered::Message(message) => outcome_of(message, &id).map_err(|_| {
                self.inbox.drop_one(Reason::UnknownId);
                MountError::Protocol("the server's answer is for another request".to_owned())
            })?,
            Answered::Stream(stream) => self.follow(stream, &id, events).await?,
            Answered::Accepted => {
                let sentence = "the server accepted a request without a response to it";
                return Err(MountError::Protocol(sentence.to_owned()));
            }
        };
        self.outdate_tools_on_mismatch(&outcome);
        Ok(outcome)
    }

    /// Reads the stream of a request up to its outcome. Fails if the stream ends before the
    /// outcome: this revision cannot resume a stream.
    async fn follow(
        &self,
        mut stream: Box<EventStream>,
        id: &Id,
        events: &Events,
    ) -> Result<Outcome, MountError> {
        loop {
            let event = match stream.next_event().await {
                Ok(event) => event,
                Err(StreamEnd::Failed(error)) => return Err(error),
                Err(StreamEnd::Closed) => {
                    let sentence = "the server closed the stream before it answered";
                    return Err(MountError::Protocol(sentence.to_owned()));
                }
            };
            let Some(message) = stream.read(&event)? else {
                continue;
            };
            match outcome_of(message, id) {
                Ok(outcome) => {
                    stream.drain();
                    return Ok(outcome);
                }
                Err(Message::Notification { method, params }) => {
                    self.inbox.notification(method, params, events);
                }
                Err(Message::Request { .. }) => self.inbox.drop_one(Reason::UnaskedRequest),
                Err(Message::Response { .. }) => self.inbox.drop_one(Reason::UnknownId),
            }
        }
    }

    /// Marks the tools as changed after a header mismatch: the definitions that the header fields
    /// were made from are outdated.
    fn outdate_tools_on_mismatch(&self, outcome: &Outcome) {
        if outcome
            .as_ref()
            .is_err_and(|error| error.code == HEADER_MISMATCH)
        {
            let method = List::Tools.notification().into();
            let unsolicited = &self.inbox.unsolicited;
            self.inbox.notification(method, None, unsolicited);
        }
    }
}

impl MountSession for ModernSession {
    fn described(&self) -> &Described {
        &self.described
    }

    fn check_definition(&self, tool: &RawValue) -> Result<(), String> {
        mirrored_params::check(tool)
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                outcome = self.call(&permit, &events) => outcome,
                () = self.inbox.ended.cancelled() => Err(MountError::Died { exit: None }),
            }
        })
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move {
            let posting = async {
                let answer = self.post(&permit, None).await?;
                read_accepted(&self.wire, answer).await
            };
            let posted = timeout(self.timeout, posting).await;
            posted.unwrap_or(Err(MountError::TimedOut))
        })
    }

    fn ended(&self) -> &CancellationToken {
        &self.inbox.ended
    }
}
