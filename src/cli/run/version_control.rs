//! What version control systems keep in the directory of a repository: files that they execute or
//! obey, and data.

use std::path::Path;

use super::obeyed::matches;

/// A file or directory, and the text of the placeholder file that is made if it is missing.
type Obeyed = (&'static str, IfMissing);

/// What a run does about a missing file.
#[derive(Clone, Copy, Debug)]
pub enum IfMissing {
    /// Makes a placeholder file with this text, so that the command cannot create the file.
    File(&'static str),
    /// Makes an empty directory.
    Directory,
    /// Compares at the end.
    Compare,
}

/// A version control system.
#[derive(Debug)]
pub struct System {
    /// The name of the directory of a repository.
    pub name: &'static str,
    /// Relative paths of files that the system executes or obeys.
    pub obeyed: &'static [Obeyed],
    /// Patterns of relative paths of data, which the command may change. What is neither obeyed nor
    /// data is compared, so that a file that a later version obeys is covered.
    data: &'static [&'static str],
}

/// git. `commondir` contains the path of another directory with hooks and settings; `.` is the git
/// directory itself.
pub const GIT: System = System {
    name: ".git",
    obeyed: &[
        ("hooks", IfMissing::Directory),
        ("config", IfMissing::File("")),
        ("config.worktree", IfMissing::File("")),
        ("commondir", IfMissing::File(".\n")),
    ],
    data: &[
        "*.lock",
        "*HEAD",
        "*_MSG",
        "AUTO_MERGE",
        "BISECT_*",
        "COMMIT_EDITMSG",
        "MERGE_MODE",
        "MERGE_RR",
        "NOTES_*",
        "TAG_EDITMSG",
        "description",
        "gc.log",
        "gc.pid",
        "gitdir",
        "index*",
        "lfs",
        "logs",
        "modules",
        "objects",
        "packed-refs",
        "refs",
        "reftable",
        "rr-cache",
        "shallow",
        "sharedindex.*",
        "worktrees",
    ],
};
/// Mercurial and Sapling. `requires` can make `sharedpath` name another repository, whose settings
/// are obeyed.
const OF_MERCURIAL: &[Obeyed] = &[
    ("hgrc", IfMissing::File("")),
    ("hgrc-not-shared", IfMissing::Compare),
    ("config", IfMissing::Compare),
    ("requires", IfMissing::Compare),
    ("sharedpath", IfMissing::Compare),
];
const DATA_OF_MERCURIAL: &[&str] = &[
    "*lock",
    "00changelog.i",
    "bookmarks*",
    "branch",
    "cache",
    "dirstate*",
    "last-message.txt",
    "store",
    "strip-backup",
    "treestate",
    "undo.*",
    "wcache",
];
const OTHERS: &[System] = &[
    System {
        name: ".hg",
        obeyed: OF_MERCURIAL,
        data: DATA_OF_MERCURIAL,
    },
    System {
        name: ".sl",
        obeyed: OF_MERCURIAL,
        data: DATA_OF_MERCURIAL,
    },
    System {
        name: ".jj",
        obeyed: &[
            ("repo/config.toml", IfMissing::Compare),
            ("repo/config-id", IfMissing::Compare),
            ("repo/store/git_target", IfMissing::Compare),
            ("repo/store/type", IfMissing::Compare),
            ("workspace-config.toml", IfMissing::Compare),
            ("workspace-config-id", IfMissing::Compare),
        ],
        data: &[
            "repo/index*",
            "repo/op_*",
            "repo/store/*",
            "repo/submodule_store*",
            "working_copy*",
        ],
    },
];

/// The system whose repositories have a directory with this name; `None` for git, whose
/// repositories have further rules.
pub fn other_system(name: &str) -> Option<&'static System> {
    OTHERS.iter().find(|system| system.name == name)
}

impl System {
    pub fn is_git(&self) -> bool {
        self.name == GIT.name
    }

    /// Whether a path in the directory of a repository is data.
    pub fn is_data(&self, relative: &Path) -> bool {
        let text = relative.to_str().unwrap_or_default();
        self.data.iter().any(|pattern| matches(pattern, text))
    }

    pub fn is_obeyed(&self, relative: &Path) -> bool {
        let mut obeyed = self.obeyed.iter();
        obeyed.any(|(name, _)| Path::new(name) == relative)
    }
}
