//! Ignore files, by which `find` and `grep` leave out entries of a tree.
//!
//! Reads `.gitignore` and `.git/info/exclude` like git, and `.ignore` like ripgrep. `.gitignore`
//! applies outside of a repository too. `.ignore` takes precedence. The `.gitignore` of a
//! repository does not apply to the files of a repository nested in it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder, Glob};
use rustix::fs::{FileType, OFlags, fstat};

use crate::workspace::{Links, Workspace};

/// The most bytes of the ignore files that apply to one folder: its own and those of the folders
/// above it. Their compiled globs take a multiple of that.
const RULES_BYTES_MAX: usize = 512 * 1024;

/// The ignore rules of a folder and of the folders above it.
#[derive(Debug)]
pub(super) struct Rules {
    above: Option<Arc<Self>>,
    ignore: Gitignore,
    gitignore: Gitignore,
    exclude: Gitignore,
    is_repository: bool,
    /// The number of bytes of ignore files that were read for this folder and those above.
    bytes: usize,
}

/// Whether a folder has, or may have, each of the ignore files and `.git`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Present {
    pub(super) ignore: bool,
    pub(super) gitignore: bool,
    pub(super) git: bool,
}

impl Present {
    /// The value for a folder whose entries are unknown.
    pub(super) const UNKNOWN: Self = Self {
        ignore: true,
        gitignore: true,
        git: true,
    };

    pub(super) fn note(&mut self, name: &[u8]) {
        match name {
            b".ignore" => self.ignore = true,
            b".gitignore" => self.gitignore = true,
            b".git" => self.git = true,
            _ => {}
        }
    }
}

impl Rules {
    /// Rules that exclude nothing.
    pub(super) fn none() -> Arc<Self> {
        Arc::new(Self {
            above: None,
            ignore: Gitignore::empty(),
            gitignore: Gitignore::empty(),
            exclude: Gitignore::empty(),
            is_repository: false,
            bytes: 0,
        })
    }

    /// The rules within `folder`, whose path relative to the root is `path`.
    ///
    /// If an ignore file was too large or too complex to be applied, the second value is the
    /// reason.
    pub(super) fn within(
        self: &Arc<Self>,
        workspace: &Workspace,
        folder: &OwnedFd,
        path: &[u8],
        present: Present,
    ) -> (Arc<Self>, Option<&'static str>) {
        let mut reader = Reader {
            workspace,
            folder,
            path,
            left: RULES_BYTES_MAX.saturating_sub(self.bytes),
            failed: None,
        };
        let ignore = reader.read(b".ignore", present.ignore);
        let gitignore = reader.read(b".gitignore", present.gitignore);
        let git = || workspace.open_at(folder, b".git", OFlags::PATH, Links::Refuse);
        let is_repository = present.git && git().is_ok();
        let exclude = reader.read(b".git/info/exclude", is_repository);
        let failed = reader.failed;
        let bytes = RULES_BYTES_MAX.saturating_sub(reader.left);
        if !is_repository && ignore.is_empty() && gitignore.is_empty() {
            return (Arc::clone(self), failed);
        }
        let rules = Self {
            above: Some(Arc::clone(self)),
            ignore,
            gitignore,
            exclude,
            is_repository,
            bytes,
        };
        (Arc::new(rules), failed)
    }

    /// Whether the rules exclude the entry at `path`, which is relative to the root.
    pub(super) fn ignores(&self, path: &[u8], is_folder: bool) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let (mut by_ignore, mut by_git, mut by_exclude) = (Match::None, Match::None, Match::None);
        let mut left_repository = false;
        let mut rules = Some(self);
        while let Some(here) = rules {
            by_ignore = first(by_ignore, &here.ignore, path, is_folder);
            if !left_repository {
                by_git = first(by_git, &here.gitignore, path, is_folder);
                by_exclude = first(by_exclude, &here.exclude, path, is_folder);
            }
            left_repository |= here.is_repository;
            rules = here.above.as_deref();
        }
        by_ignore.or(by_git).or(by_exclude).is_ignore()
    }
}

/// Returns `found` if it is a match, otherwise the match of `rules`: the innermost folder's rules
/// win.
fn first<'a>(
    found: Match<&'a Glob>,
    rules: &'a Gitignore,
    path: &Path,
    is_folder: bool,
) -> Match<&'a Glob> {
    if found.is_none() {
        rules.matched(path, is_folder)
    } else {
        found
    }
}

struct Reader<'a> {
    workspace: &'a Workspace,
    folder: &'a OwnedFd,
    path: &'a [u8],
    left: usize,
    failed: Option<&'static str>,
}

impl Reader<'_> {
    fn read(&mut self, name: &[u8], present: bool) -> Gitignore {
        let Some(text) = present.then(|| self.text(name)).flatten() else {
            return Gitignore::empty();
        };
        let mut builder = GitignoreBuilder::new(OsStr::from_bytes(self.path));
        let text = String::from_utf8_lossy(&text);
        for line in text.strip_prefix('\u{feff}').unwrap_or(&text).lines() {
            // A line that is not a valid glob has no effect, as in git.
            let _ = builder.add_line(None, line);
        }
        builder.build().unwrap_or_else(|_| {
            self.failed = Some("its ignore rules are too complex and were not applied");
            Gitignore::empty()
        })
    }

    /// Reads an ignore file. Returns `None` if it is missing, unreadable, not a regular file or
    /// larger than `left`; only the last case sets `failed`.
    fn text(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        let fd = self
            .workspace
            .open_at(self.folder, name, OFlags::RDONLY, Links::Refuse)
            .ok()?;
        if FileType::from_raw_mode(fstat(&fd).ok()?.st_mode) != FileType::RegularFile {
            return None;
        }
        let mut text = Vec::new();
        let bound = (self.left as u64).saturating_add(1);
        File::from(fd).take(bound).read_to_end(&mut text).ok()?;
        match self.left.checked_sub(text.len()) {
            Some(left) => {
                self.left = left;
                Some(text)
            }
            None => {
                self.failed = Some("its ignore rules are too large and were not applied");
                None
            }
        }
    }
}
