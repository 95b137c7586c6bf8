//! What was permitted, and is judged again after a reload.

use addons::contract::{Endpoint, Flow, Kind};

use crate::snapshot::Snapshot;

/// What was permitted, and under which configuration.
#[derive(Clone)]
pub struct Permission {
    pub generation: u64,
    pub kind: Kind,
    pub endpoint: Endpoint,
}

impl Permission {
    /// What a flow asks for under a snapshot; a DNS question has no permission that lasts.
    pub fn of(flow: &Flow, snapshot: &Snapshot) -> Option<Self> {
        Some(Self {
            generation: snapshot.generation(),
            kind: flow.kind,
            endpoint: flow.endpoint()?.clone(),
        })
    }
}
