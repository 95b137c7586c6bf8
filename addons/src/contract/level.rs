//! Security levels.

/// How confidential the data is that a container has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Only public data.
    #[default]
    Public,
    /// Confidential data.
    Confidential,
    /// Secret data.
    Secret,
}

impl Level {
    const ALL: [Self; 3] = [Self::Public, Self::Confidential, Self::Secret];

    /// `Public`, `Confidential` or `Secret`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "Public",
            Self::Confidential => "Confidential",
            Self::Secret => "Secret",
        }
    }

    /// Parses `Public`, `Confidential` or `Secret`; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

/// The security level and the abort latch of a lease, which tool calls can only tighten. They
/// survive restarts; an operator can reset them, and a new lease begins without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The highest level of the data that the container has read.
    pub level: Level,
    /// The abort latch: a policy denied a tool call with `deny_abort`, so every later call is denied
    /// too.
    pub aborted: bool,
}

impl Standing {
    /// The stricter of two, field by field.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            level: self.level.max(other.level),
            aborted: self.aborted || other.aborted,
        }
    }
}
