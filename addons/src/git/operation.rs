//! The operations on git hosts, as labels of metrics.

/// The operation of a request to a git host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Lists the refs, to fetch or to push.
    Refs {
        /// Whether the client lists them to push.
        push: bool,
    },
    /// Fetches objects.
    Fetch,
    /// Sends commands and a pack.
    Push,
    /// Transfers large files, or manages their locks.
    Lfs,
    /// Reads a page or a file of a repository.
    Page,
}

impl Operation {
    /// Every value of [`Operation::as_str`].
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

    /// Whether the operation is a push, or lists the refs to push.
    pub const fn is_push(self) -> bool {
        matches!(self, Self::Push | Self::Refs { push: true })
    }
}
