//! What only the forge knows: which repository a number or a node id belongs to.

use std::sync::Arc;

use crate::contract::{BoxFuture, Container, Host};

/// Asks the forge, with the credential that the container's own requests would get. Answers may
/// be kept for as long as the lease lasts. What cannot be resolved is `None`, and denied.
pub trait Forge: Send + Sync {
    /// The `owner/name` of the repository with this number.
    fn repo_of_id<'a>(&'a self, asker: Asker, id: u64) -> BoxFuture<'a, Option<String>>;

    /// What each of the ids names, in the order asked.
    fn nodes<'a>(&'a self, asker: Asker, ids: Vec<String>) -> BoxFuture<'a, Vec<Option<Node>>>;
}

/// On whose behalf the forge is asked, and where.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The lease whose request needs the answer.
    pub container: Arc<Container>,
    /// The host that the request goes to.
    pub host: Host,
    /// The path below which its API lies there: empty, or `/api`.
    pub prefix: &'static str,
}

/// What a node id names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The `owner/name` of the repository that it lies in.
    pub repo: String,
    /// The label's name, where it is a label.
    pub label: Option<String>,
}

/// A forge that nobody can ask: whatever needs it is denied.
pub struct Unasked;

impl Forge for Unasked {
    fn repo_of_id<'a>(&'a self, _asker: Asker, _id: u64) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(None))
    }

    fn nodes<'a>(&'a self, _asker: Asker, ids: Vec<String>) -> BoxFuture<'a, Vec<Option<Node>>> {
        Box::pin(std::future::ready(vec![None; ids.len()]))
    }
}
