//! Requests that cannot be judged.

/// The body is not a GraphQL request that can be judged, and why.
#[derive(Debug)]
pub(super) struct Unreadable(pub(super) String);

impl Unreadable {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
