//! What only the forge knows: which repository a number or a node id belongs to.

mod client;

use std::sync::Arc;

use crate::contract::{BoxFuture, Container, Denial, Host};

pub use client::ForgeClient;

/// Asks the forge as the container itself would: with its credential, within its policy and its
/// budgets. Answers belong to the lease. What is nowhere that the container may see is `None`, and
/// denied; an error is why it could not be asked.
pub trait Forge: Send + Sync {
    /// The `owner/name` of the repository with this number.
    fn repo_of_id<'a>(
        &'a self,
        requester: Requester,
        id: u64,
    ) -> BoxFuture<'a, Result<Option<String>, Denial>>;

    /// What each of up to 100 ids names, in the order asked.
    fn nodes<'a>(
        &'a self,
        requester: Requester,
        ids: Vec<String>,
    ) -> BoxFuture<'a, Result<Vec<Option<Node>>, Denial>>;
}

/// On whose behalf the forge is asked, and where.
#[derive(Clone, Debug)]
pub struct Requester {
    /// The lease whose request needs the answer.
    pub container: Arc<Container>,
    /// The host that the request goes to.
    pub host: Host,
    /// Its port there.
    pub port: u16,
    /// The path below which its API lies there: empty, or `/api`.
    pub prefix: &'static str,
}

/// What a node id names: something in a repository, or an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The `owner/name` of the repository that it lies in.
    pub repo: Option<String>,
    /// The label's name, where it is a label.
    pub label: Option<String>,
    /// The login, where it is the account of a person or a bot.
    pub login: Option<String>,
}
