//! The health of a mount, over all its sessions.

use std::sync::Arc;

use parking_lot::Mutex;

use super::MountError;

/// The health of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountState {
    /// No session was requested yet, or the first ones are being opened.
    Connecting,
    /// A session is open or was open, and none of the failures of `Degraded` applies.
    Ready,
    /// At least one session is open, and there was a failure since the newest session was opened: a
    /// session ended with a failure, another session could not be opened, or the last request
    /// failed because of the server.
    Degraded,
    /// No session is open. Either the first session could not be opened, or a failure of `Degraded`
    /// occurred since the newest session was opened.
    Dead,
}

impl MountState {
    /// The name of the state in the response to `/health`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Dead => "dead",
        }
    }
}

/// A mount's state, and why it is not ready.
#[derive(Clone, Debug)]
pub struct MountHealth {
    /// The server's name.
    pub server: Arc<str>,
    /// Its state.
    pub state: MountState,
    /// The failure to show to operators: the error of the last request if the server caused it,
    /// otherwise the last failure to open or keep a session. `None` if the mount is connecting or
    /// ready.
    pub failure: Option<String>,
    /// The hosts that were refused to the server's processes of a container; empty without a
    /// container.
    pub refused_hosts: Vec<String>,
    /// Whether the server's process has no network at all.
    pub has_no_network: bool,
}

/// Counts a mount's sessions and keeps the last failures of a session and of a request.
#[derive(Default)]
pub(super) struct HealthRecord(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    open: usize,
    opened_before: bool,
    failure: Option<String>,
    /// Error of the last request in an open session if the server could not be reached or violated
    /// the protocol; `None` once the server answers again.
    call_failure: Option<String>,
}

impl HealthRecord {
    pub fn opened(&self) {
        let mut counts = self.0.lock();
        counts.open = counts.open.saturating_add(1);
        counts.opened_before = true;
        counts.failure = None;
        counts.call_failure = None;
    }

    /// Records the end of a request in an open session: `failure` if the server could not be
    /// reached or violated the protocol, `None` if it answered.
    pub fn called(&self, failure: Option<&MountError>) {
        self.0.lock().call_failure = failure.map(ToString::to_string);
    }

    /// Records that a session could not be opened.
    pub fn failed(&self, error: &MountError) {
        self.0.lock().failure = Some(error.to_string());
    }

    /// Records the end of an open session. `failure` is `None` if the gateway ended it.
    pub fn ended(&self, failure: Option<String>) {
        let mut counts = self.0.lock();
        counts.open = counts.open.saturating_sub(1);
        if failure.is_some() {
            counts.failure = failure;
        }
    }

    pub fn read(&self, server: &Arc<str>) -> MountHealth {
        let counts = self.0.lock();
        let failure = counts.call_failure.as_ref().or(counts.failure.as_ref());
        let state = match (counts.open, failure) {
            (0, Some(_)) => MountState::Dead,
            (_, Some(_)) => MountState::Degraded,
            (0, None) if !counts.opened_before => MountState::Connecting,
            (_, None) => MountState::Ready,
        };
        MountHealth {
            server: Arc::clone(server),
            state,
            failure: failure.cloned(),
            refused_hosts: Vec::new(),
            has_no_network: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_open_sessions_and_the_last_failure() {
        let record = HealthRecord::default();
        let server: Arc<str> = "kb".into();
        let state = || record.read(&server).state;
        let failure = MountError::CannotStart("no such program".to_owned());
        assert_eq!(state(), MountState::Connecting);
        record.failed(&failure);
        assert_eq!(state(), MountState::Dead);
        assert_eq!(
            record.read(&server).failure.as_deref(),
            Some("no such program")
        );
        record.opened();
        assert_eq!(state(), MountState::Ready);
        record.failed(&failure);
        assert_eq!(state(), MountState::Degraded);
        record.opened();
        record.ended(None);
        record.ended(None);
        assert_eq!(
            state(),
            MountState::Ready,
            "a session that the gateway closes is not a failure"
        );
        record.opened();
        record.called(Some(&failure));
        assert_eq!(state(), MountState::Degraded);
        assert_eq!(
            record.read(&server).failure.as_deref(),
            Some("no such program")
        );
        record.called(None);
        assert_eq!(state(), MountState::Ready);
        record.ended(Some("it exited".to_owned()));
        assert_eq!(state(), MountState::Dead);
        record.called(None);
        assert_eq!(
            state(),
            MountState::Dead,
            "an answered request does not clear the failure of a session"
        );
    }
}
