//! Counts dropped messages of servers over HTTP.

use prometheus::{IntCounterVec, Opts, Registry};

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The message answers a request that was not sent, is no longer under way, or was already
    /// answered.
    UnknownId,
    /// `Events::try_send` refused the message, or too many requests of the server wait for an
    /// answer.
    QueueFull,
    /// The text is not a message of the protocol, or a legacy server responded to a request with a
    /// message that is no response.
    Malformed,
    /// The message is a request, which the server may not send in this revision.
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

/// Counts dropped messages, for all servers over HTTP together.
#[derive(Clone)]
pub struct Dropped(IntCounterVec);

impl Dropped {
    /// Registers `proxy_mcp_dropped_messages_total`.
    pub fn new(metrics: &Registry) -> prometheus::Result<Self> {
        let help = "Messages of MCP servers over HTTP that were dropped, by reason.";
        let counts = Opts::new("proxy_mcp_dropped_messages_total", help);
        let counts = IntCounterVec::new(counts, &["reason"])?;
        metrics.register(Box::new(counts.clone()))?;
        for reason in Reason::ALL {
            counts.with_label_values(&[reason.as_str()]);
        }
        Ok(Self(counts))
    }

    /// Counts one message.
    pub fn count(&self, reason: Reason) {
        self.0.with_label_values(&[reason.as_str()]).inc();
    }
}
