//! Guard that counts a request as under way on its connection.

use std::sync::Arc;
use std::time::Instant;

use super::session::Session;

/// Counts a request as under way on its connection until this is dropped.
pub struct UnderWay(Arc<Session>);

impl UnderWay {
    pub fn begin(session: &Arc<Session>, started: Instant) -> Self {
        session.idle.begin(started.into());
        Self(Arc::clone(session))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.idle.end(Instant::now().into());
    }
}
