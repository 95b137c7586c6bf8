//! The clients that a session is opened for.

use std::sync::{Arc, Weak};

use addons::contract::Container;
use serde_json::value::RawValue;

use super::Version;
use super::changes::ListNews;

/// The clients that a session is opened for.
pub(super) struct Wanted {
    /// The lease that the session belongs to; `None` for one that all containers share.
    pub container: Option<Arc<Container>>,
    /// The container that first requested the session.
    pub asked_by: Weak<Container>,
    /// Announces changes of the session's lists.
    pub news: Arc<ListNews>,
    pub version: Version,
    pub capabilities: Arc<RawValue>,
}
