//! The approved execution that a message belongs to.

use super::level::Level;

/// The execution of a call that a person approved. It is in the flow of the call itself, and of a
/// client's retry or answer that continues it, and answers the same question without another grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executing {
    /// See [`Question::digest`](super::Question::digest).
    pub digest: Box<str>,
    /// The highest security level of the container at which it answers: the level of the question
    /// or, if that is higher, the tool's classification, which the execution itself reaches.
    pub level: Level,
}
