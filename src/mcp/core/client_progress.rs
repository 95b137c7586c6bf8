//! Progress that clients report on requests of servers. The gateway replaces the progress token of
//! each such request, so that a client can report only on requests that it received.

use std::collections::HashMap;
use std::sync::Arc;

use addons::json::Members;
use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::params::{PROGRESS_TOKEN, Progress, edit};
use super::{Caller, MountSession};

/// The open requests of servers to the clients of one lease, by the gateway's progress token. The
/// text is the server's token, as JSON.
#[derive(Default)]
pub(super) struct ProgressReceivers(Mutex<HashMap<u64, (ProgressReceiver, Box<str>)>>);

/// The server that asked for progress, and the client that reports it.
#[derive(Clone)]
pub(super) struct ProgressReceiver {
    pub client: Arc<Caller>,
    pub server: Arc<str>,
    pub session: Arc<dyn MountSession>,
}

impl ProgressReceivers {
    /// The server that a client's progress is for, with that server's token; `None` if the client
    /// received no request with the progress token in `params`.
    pub fn find(
        &self,
        client: &Arc<Caller>,
        params: &RawValue,
    ) -> Option<(ProgressReceiver, Box<str>)> {
        let members = Members::read(params).ok()?;
        let token: u64 = members.get(PROGRESS_TOKEN)?.parse().ok()?;
        let found = self.0.lock().get(&token).cloned();
        found.filter(|(receiver, _)| Arc::ptr_eq(&receiver.client, client))
    }
}

/// Guard of a progress token: until it is dropped, the client's progress goes to the server.
pub(super) struct ProgressGuard {
    receivers: Arc<ProgressReceivers>,
    token: u64,
}

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        self.receivers.0.lock().remove(&self.token);
    }
}

impl ProgressReceiver {
    /// Replaces the server's progress token in `params` by one of the gateway. `None` if the
    /// request has no token, so that the server gets no progress.
    pub fn begin(
        self,
        params: &RawValue,
        receivers: &Arc<ProgressReceivers>,
    ) -> Option<(Box<RawValue>, ProgressGuard)> {
        let members = Members::read(params).ok()?;
        let meta = members.members("_meta").ok()??;
        let progress = Progress::of(&meta)?;
        let token = progress.replacement;
        let meta = edit(&meta, &[(PROGRESS_TOKEN, Some(&token.to_string()))]);
        let params = edit(&members, &[("_meta", Some(&meta))]);
        let params = RawValue::from_string(params).ok()?;
        let receivers = Arc::clone(receivers);
        receivers.0.lock().insert(token, (self, progress.original));
        Some((params, ProgressGuard { receivers, token }))
    }
}
