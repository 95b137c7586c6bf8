//! Permissions of flows, which are judged again after a reload, after a change of the security
//! level and after the end of a grant.

use std::sync::Arc;

use addons::contract::{Endpoint, Flow, Kind, Level, RestsOnGrant};

use crate::snapshot::Snapshot;

/// The parts of a flow that are judged again, and the generation of the configuration under which
/// the flow began.
#[derive(Clone)]
pub struct Permission {
    pub generation: u64,
    /// The container's security level before the flow was judged, or a lower one.
    pub level: Level,
    /// Whether the flow rests on a grant, which may have ended since the flow was judged.
    pub rests_on_grant: bool,
    pub kind: Kind,
    pub endpoint: Endpoint,
    /// The path of a WebSocket's handshake, in normal form; `None` for other flows.
    pub websocket: Option<Arc<str>>,
}

impl Permission {
    /// The permission of a flow under a snapshot; `None` for a flow without an endpoint, such as a
    /// DNS question, which is judged once.
    pub fn of(flow: &Flow, snapshot: &Snapshot) -> Option<Self> {
        Some(Self {
            generation: snapshot.generation(),
            level: Level::Public,
            rests_on_grant: flow.find_slot::<RestsOnGrant>().is_some(),
            kind: flow.kind,
            endpoint: flow.endpoint()?.clone(),
            websocket: (flow.kind == Kind::Websocket)
                .then(|| flow.record().path.clone())
                .flatten(),
        })
    }
}
