//! What a flow of a tool call carries while a person decides about it.

use super::approval::{ApprovalId, GrantId};
use super::level::Level;

/// A person approved the question about the call. The engine has the chain judge the call again,
/// and the grant answers the question if nothing else denies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approved {
    /// The question.
    pub approval: ApprovalId,
    /// The grant, which is not used yet.
    pub grant: GrantId,
    /// See [`Question::digest`](super::Question::digest).
    pub digest: Box<str>,
    /// The security level that the person saw, up to which the approval holds.
    pub level: Level,
}

/// The approved executions that the message belongs to, by the digests of their questions: the call
/// itself, or the call that a client's retry or answer continues. They answer the same question
/// without another grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executing(pub Vec<Box<str>>);
