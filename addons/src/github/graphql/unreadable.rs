//! Requests that cannot be judged.

/// What was sent is not a GraphQL request that can be judged.
#[derive(Debug)]
pub(super) struct Unreadable(pub(super) String);

impl Unreadable {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
