//! What the git rules leave in a flow's slots for others.

/// What a request to a git host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GitOperation {
    /// Asks which refs there are, to fetch or to push.
    Refs {
        /// It is the first half of a push.
        push: bool,
    },
    /// Fetches objects.
    Fetch,
    /// Sends commands and a pack.
    Push,
    /// Large files and their locks.
    Lfs,
    /// Reads a page or a file of a repository.
    Page,
}

impl GitOperation {
    /// Every value of [`GitOperation::as_str`].
    pub const LABELS: [&'static str; 5] = ["refs", "fetch", "push", "lfs", "page"];

    /// The `operation` label of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refs { .. } => "refs",
            Self::Fetch => "fetch",
            Self::Push => "push",
            Self::Lfs => "lfs",
            Self::Page => "page",
        }
    }

    /// Whether it is a push or the first half of one.
    pub const fn is_push(self) -> bool {
        matches!(self, Self::Push | Self::Refs { push: true })
    }
}

/// The request reads what everybody may read: no credential may be added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anonymous;

/// The flow is a question that an addon needs answered before it can judge a request of the same
/// container, for which the engine asks. It is part of that request and has its place; only the
/// engine makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup;

/// The request is to an API that lies on a git host, and was judged as such: it is no git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiCall;
