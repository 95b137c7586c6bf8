//! Revisions of the protocol.

/// A revision that the gateway supports. An older revision is less than a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP+SSE: an event stream, and a second endpoint for the client's messages.
    V2024_11_05,
    /// Adds Streamable HTTP.
    V2025_03_26,
    /// Adds elicitation and structured results.
    V2025_06_18,
    /// The last revision with a handshake.
    V2025_11_25,
    /// Stateless.
    V2026_07_28,
}

/// The revisions with a handshake, or those without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// Up to 2025-11-25: a session begins with `initialize`.
    Legacy,
    /// From 2026-07-28 on: there is no handshake, and each request describes its client.
    Modern,
}

impl Version {
    /// All revisions, newest first.
    pub const ALL: [Self; 5] = [
        Self::V2026_07_28,
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];
    /// The newest revision with a handshake.
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;

    /// The date that names the revision in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The revision with this date; `None` if the gateway does not support it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
    }

    /// The era of the revision.
    pub const fn era(self) -> Era {
        match self {
            Self::V2026_07_28 => Era::Modern,
            _ => Era::Legacy,
        }
    }
}
