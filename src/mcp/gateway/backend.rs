//! What the gateway needs from what is behind it.

use std::any::Any;
use std::sync::Arc;

use addons::contract::{BoxFuture, Container, Definition};
use serde_json::value::RawValue;

use super::super::caller::Caller;
use super::super::core::{Core, Description, Interest};
use super::super::event::Events;
use super::super::message::Outcome;
use super::super::mounts::MountHealth;

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
    fn describe<'a>(&'a self, caller: &'a Arc<Caller>) -> BoxFuture<'a, Description>;

    /// Sends what belongs to no request to `events` until the attachment is dropped.
    fn attach(&self, caller: &Arc<Caller>, interest: Interest, events: Events) -> Attached;

    /// The definition of a tool by the name that the caller knows it by.
    fn tool(
        &self,
        caller: Arc<Caller>,
        name: Arc<str>,
    ) -> BoxFuture<'static, Option<Arc<Definition>>>;

    /// How the parts are; those of a container's servers, or of all.
    fn health(&self, container: Option<&Container>) -> Parts;
}

/// Detaches when it is dropped.
pub type Attached = Box<dyn Any + Send + Sync>;

/// How the parts of the gateway are.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Every policy could be loaded.
    pub policy: bool,
    /// The servers.
    pub servers: Vec<MountHealth>,
}

impl Backend for Arc<Core> {
    fn request(
        &self,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
        events: Events,
    ) -> BoxFuture<'static, Outcome> {
        Box::pin(Core::request(
            Self::clone(self),
            caller,
            method,
            params,
            events,
        ))
    }

    fn notify(
        &self,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(Core::notify(Self::clone(self), caller, method, params))
    }

    fn describe<'a>(&'a self, caller: &'a Arc<Caller>) -> BoxFuture<'a, Description> {
        Box::pin(Core::describe(self, caller))
    }

    fn attach(&self, caller: &Arc<Caller>, interest: Interest, events: Events) -> Attached {
        Box::new(Core::attach(self, caller, interest, events))
    }

    fn tool(
        &self,
        caller: Arc<Caller>,
        name: Arc<str>,
    ) -> BoxFuture<'static, Option<Arc<Definition>>> {
        Box::pin(Core::tool(Self::clone(self), caller, name))
    }

    fn health(&self, container: Option<&Container>) -> Parts {
        let mounts = self.mounts();
        let servers = match container {
            Some(container) => {
                let mounts = mounts.of(container);
                mounts.iter().map(|mount| mount.health()).collect()
            }
            None => mounts.health(),
        };
        Parts {
            policy: self.policies_loaded(),
            servers,
        }
    }
}
