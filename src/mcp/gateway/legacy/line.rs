//! The connection from a call to its client.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::super::limits::GatewayMetrics;
use super::super::memory::Memory;
use super::event_stream::EventStream;
use super::session::LegacySession;

/// The stream that a client reads, and the state for writing to it.
#[derive(Clone)]
pub struct Line {
    pub session: Arc<LegacySession>,
    pub stream: Arc<EventStream>,
    pub memory: Memory,
    pub metrics: GatewayMetrics,
    /// Cancelled when the process must stop at once.
    pub killed: CancellationToken,
}
