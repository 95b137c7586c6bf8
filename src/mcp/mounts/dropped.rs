//! Counts dropped messages of servers.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It answers a request that was not sent, or was already answered.
    UnknownId,
    /// The queue of its reader is full, or too many requests of the server wait.
    QueueFull,
    /// It is not a message of the protocol.
    Malformed,
    /// It is a request where the server may not send one.
    UnaskedRequest,
}

impl Reason {
    const ALL: [Self; 4] = [
        Self::UnknownId,
        Self::QueueFull,
        Self::Malformed,
        Self::UnaskedRequest,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownId => "unknown_id",
            Self::QueueFull => "queue_full",
            Self::Malformed => "malformed",
            Self::UnaskedRequest => "unasked_request",
        }
    }
}

/// Counts dropped messages over all servers.
#[derive(Clone)]
pub struct Dropped([IntCounter; 4]);

impl Dropped {
    /// Registers `proxy_mcp_dropped_messages_total`.
    pub fn new(metrics: &Registry) -> prometheus::Result<Self> {
        let help = "Messages of MCP servers that were dropped, by reason.";
        let counts = Opts::new("proxy_mcp_dropped_messages_total", help);
        let counts = IntCounterVec::new(counts, &["reason"])?;
        metrics.register(Box::new(counts.clone()))?;
        let of = |reason: Reason| counts.with_label_values(&[reason.as_str()]);
        Ok(Self(Reason::ALL.map(of)))
    }

    /// Counts one message.
    pub fn count(&self, reason: Reason) {
        let mut all = Reason::ALL.iter().zip(&self.0);
        if let Some((_, counter)) = all.find(|(one, _)| **one == reason) {
            counter.inc();
        }
    }
}
