//! The error of a GraphQL body that cannot be judged.

/// Why a body is not a GraphQL request that can be judged: its syntax, or its cost.
#[derive(Debug)]
pub(super) struct InvalidGraphql(pub(super) String);

impl InvalidGraphql {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
