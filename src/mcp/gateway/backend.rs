//! What the gateway needs from what is behind it.

use std::any::Any;
use std::sync::Arc;

use addons::contract::{BoxFuture, Container, Definition};
use serde_json::value::RawValue;

use super::super::caller::Caller;
use super::super::event::Events;
use super::super::message::Outcome;

/// Routes messages to servers, whatever the era of either side.
pub trait Backend: Send + Sync + 'static {
    /// Answers a request. Messages of the server that belong to it go to `events`. Dropping the
    /// future cancels it at the server.
    fn request(
        &self,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
        events: Events,
    ) -> BoxFuture<'static, Outcome>;

    /// Passes a notification on.
    fn notify(
        &self,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    ) -> BoxFuture<'static, ()>;

    /// What the servers of a caller can do together.
    fn describe(&self, caller: Arc<Caller>) -> BoxFuture<'static, Description>;

    /// Sends what belongs to no request to `events` until the attachment is dropped.
    fn attach(&self, caller: &Arc<Caller>, interest: Interest, events: Events) -> Attachment;

    /// The definition of a tool by the name that the caller knows it by.
    fn tool(&self, caller: Arc<Caller>, name: Arc<str>) -> BoxFuture<'static, Option<Arc<Definition>>>;

    /// How the parts are; those of a container's servers, or of all.
    fn health(&self, container: Option<&Arc<Container>>) -> Parts;
}

/// What the servers of a caller can do together.
#[derive(Clone, Debug)]
pub struct Description {
    /// The capabilities, as raw JSON.
    pub capabilities: Box<RawValue>,
    /// What the model is told.
    pub instructions: Option<String>,
}

/// Detaches when it is dropped.
pub type Attachment = Box<dyn Any + Send + Sync>;

/// Which messages that belong to no request a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interest {
    /// All that concern its session.
    Everything,
    /// What a modern client asked for.
    Filter(Filter),
}

/// The notifications of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    /// Resources by URI.
    pub uris: Vec<Arc<str>>,
}

/// How the parts of the gateway are.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The policy engine evaluates.
    pub policy: bool,
    /// Servers by name, with the state that each is in.
    pub servers: Vec<(Arc<str>, ServerState)>,
}

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    Connecting,
    Ready,
    Degraded,
    Dead,
}
