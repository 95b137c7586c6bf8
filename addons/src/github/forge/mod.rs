//! Look-ups at the forge: which repository a number or a node id belongs to.

mod client;

use std::sync::Arc;

use crate::contract::{BoxFuture, Container, Denial, Host};

pub use client::ForgeClient;

/// Looks up repositories and nodes at the forge as the container would: with its credential, within
/// its policy and its budgets. Answers are cached in the lease. `None` for an object that the
/// container cannot see, which is denied; an error if the look-up failed.
pub trait Forge: Send + Sync {
    /// The `owner/name` of the repository with this number.
    fn repo_of_id<'a>(
        &'a self,
        requester: Requester,
        id: u64,
    ) -> BoxFuture<'a, Result<Option<String>, Denial>>;

    /// The nodes with up to 100 ids, in the order of the ids.
    fn nodes<'a>(
        &'a self,
        requester: Requester,
        ids: Vec<String>,
    ) -> BoxFuture<'a, Result<Vec<Option<Node>>, Denial>>;
}

/// The container that a look-up is made for, and the forge's endpoint.
#[derive(Clone, Debug)]
pub struct Requester {
    /// The lease whose request needs the answer.
    pub container: Arc<Container>,
    /// The host of the container's request.
    pub host: Host,
    /// The port of the container's request.
    pub port: u16,
    /// The path prefix of the API on this host: empty, or `/api`.
    pub prefix: &'static str,
}

/// The object of a node id: something in a repository, or an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The `owner/name` of its repository.
    pub repo: Option<String>,
    /// The label's name, if it is a label.
    pub label: Option<String>,
    /// The login, if it is the account of a person or a bot.
    pub login: Option<String>,
}
