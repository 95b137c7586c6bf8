//! Security levels.

/// How confidential the things are that a container has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing but public things.
    #[default]
    Public,
    /// Something confidential.
    Confidential,
    /// Something secret.
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

    /// Reads `Public`, `Confidential` or `Secret`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

/// What a container has come to by its tool calls. It survives restarts, and an operator alone
/// takes it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// How confidential the things are that it has seen.
    pub level: Level,
    /// A policy denied a tool call with `deny_abort`: so is every later one.
    pub aborted: bool,
}

impl Standing {
    /// Both of two, as far as they go.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            level: self.level.max(other.level),
            aborted: self.aborted || other.aborted,
        }
    }
}
