//! Adds git directories, and what keeps git in the sandbox from doing harm: to directories that are
//! no git directories, to the placeholders, and to work trees that the command does not see.

use std::path::Path;

use rustix::fs::CWD;

use super::super::git_directory::{self, NOWHERE};
use super::super::obeyed::{is_empty, read_start};
use super::super::placeholders::{MAX_TEXT, Missing};
use super::super::version_control::{GIT, IfMissing};
use super::{Found, exists};

impl Found {
    /// Protects a git directory, and those of its submodules and work trees.
    pub(super) fn add_git(&mut self, git: &Path) -> Result<(), String> {
        self.repositories.insert(git.to_owned());
        self.add_repository(git, git, &GIT)?;
        for name in ["modules", "worktrees"] {
            let below = git.join(name);
            if exists(&below) {
                self.pinned.insert(below.clone());
                self.add_git_below(&below, 0)?;
            }
        }
        self.add_excludes(git)?;
        self.add_unseen(git)?;
        // `objects` may have very many files.
        self.hide_sockets(git, 0, Some("objects"))
    }

    /// Protects the git directories at any depth below a directory, since the names of submodules
    /// may contain slashes.
    fn add_git_below(&mut self, directory: &Path, depth: usize) -> Result<(), String> {
        for (entry, kind) in self.list(directory, depth)? {
            let path = entry.path();
            if !kind.is_dir() {
                continue;
            }
            if git_directory::looks_like_one(&path) {
                self.pin_between(directory, &path);
                self.add_git(&path)?;
            } else {
                self.pinned.insert(path.clone());
                self.add_git_below(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Keeps the command from making a directory a git directory, whose settings git obeys. One has a
    /// `HEAD`. In a work tree, a file of this name would make `git show HEAD` ambiguous: there, the
    /// placeholders are a `commondir` that leads nowhere and `refs`, which a git directory without
    /// `commondir` has.
    pub(super) fn add_against_git(&mut self, root: &Path) -> Result<(), String> {
        let (common, refs) = (root.join("commondir"), root.join("refs"));
        // Also those of another run.
        let leads_nowhere = read_start(CWD, &common, MAX_TEXT).is_some_and(|text| text == NOWHERE);
        let are_free = (leads_nowhere || !exists(&common)) && (is_empty(&refs) || !exists(&refs));
        if are_free && git_directory::around(root).is_some() {
            self.add(common, IfMissing::File(NOWHERE))?;
            return self.add(refs, IfMissing::Directory);
        }
        self.add(root.join("HEAD"), IfMissing::Directory)
    }

    /// Protects a missing `info/exclude`, in which git in the sandbox finds the placeholders.
    fn add_excludes(&mut self, git: &Path) -> Result<(), String> {
        let info = git.join("info");
        let excludes = info.join("exclude");
        if exists(&excludes) || info.is_symlink() || git_directory::common(git) != git {
            return Ok(());
        }
        if !exists(&info) {
            self.missing.push(Missing {
                path: info,
                text: None,
            });
        }
        self.add(excludes, IfMissing::File(""))
    }

    /// Adds the linked work trees of a repository that the command does not see.
    fn add_unseen(&mut self, git: &Path) -> Result<(), String> {
        let trees = git.join("worktrees");
        if !trees.is_dir() {
            return Ok(());
        }
        for (entry, _) in self.list(&trees, 0)? {
            let file = git_directory::file_of_linked(&entry.path());
            let mut shown = self.roots().iter().chain(&self.readable);
            if let Some(file) = file.filter(|file| !shown.any(|root| file.starts_with(root))) {
                self.unseen.push((file, entry.path()));
            }
        }
        Ok(())
    }
}
