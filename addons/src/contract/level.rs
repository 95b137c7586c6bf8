//! Security levels.

/// How confidential data is. A container has the level of the most confidential data that it may
/// have read.
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
    /// Every level, in ascending order.
    pub const ALL: [Self; 3] = [Self::Public, Self::Confidential, Self::Secret];

    /// `Public`, `Confidential` or `Secret`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "Public",
            Self::Confidential => "Confidential",
            Self::Secret => "Secret",
        }
    }

    /// Whether a container of this level must not send text to tools and servers that reach the
    /// open world.
    #[must_use]
    pub const fn excludes_open_world(self) -> bool {
        match self {
            Self::Public => false,
            Self::Confidential | Self::Secret => true,
        }
    }

    /// Parses `Public`, `Confidential` or `Secret`; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

/// The security level and the abort latch of a container. MCP messages can only raise the level and
/// set the latch. Both survive restarts, and belong to the container's id: a new lease has those of
/// the earlier ones, until an operator resets or unregisters the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The highest level of the data that the container may have read.
    pub level: Level,
    /// The abort latch, set when a policy decides `deny_abort` on a message: see
    /// [`Container::is_aborted`](super::Container::is_aborted).
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
