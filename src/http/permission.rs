//! Permissions of flows, which are judged again after a reload.

use addons::contract::{Endpoint, Flow, Kind};

use crate::snapshot::Snapshot;

/// A permitted flow: its kind and endpoint, and the configuration that permitted it.
#[derive(Clone)]
pub struct Permission {
    pub generation: u64,
    pub kind: Kind,
    pub endpoint: Endpoint,
}

impl Permission {
    /// The permission of a flow under a snapshot; `None` for a flow without an endpoint, such as a
    /// DNS question, which is judged once.
    pub fn of(flow: &Flow, snapshot: &Snapshot) -> Option<Self> {
        Some(Self {
            generation: snapshot.generation(),
            kind: flow.kind,
            endpoint: flow.endpoint()?.clone(),
        })
    }
}
