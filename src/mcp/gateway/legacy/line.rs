//! The way to a client.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::super::limits::GatewayMetrics;
use super::super::memory::Memory;
use super::event_stream::EventStream;
use super::session::LegacySession;

/// Where messages for a client go.
#[derive(Clone)]
pub struct Line {
    pub session: Arc<LegacySession>,
    pub stream: Arc<EventStream>,
    pub memory: Memory,
    pub metrics: GatewayMetrics,
    /// Ends everything at once.
    pub killed: CancellationToken,
}
