//! Walks a folder tree by descriptors: first the files of a folder, then its folders, both sorted
//! by name.
//!
//! Each folder is opened by its path relative to the searched folder's descriptor. If operations
//! are confined to the root, no symbolic link in this path is followed, so a folder that is
//! replaced by a link during the walk is skipped. At most one folder is being listed at a time.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Component;
use std::sync::Arc;
use std::vec;

use rustix::fs::{AtFlags, Dir, FileType, OFlags, statat};
use rustix::io::Errno;

use super::Skipped;
use super::rules::{Present, Rules};
use crate::failure::{Failure, reason};
use crate::work::Work;
use crate::workspace::{Links, Workspace, WorkspacePath};

/// The maximum number of entries of a folder that are read at once. The files of a larger folder
/// are returned in several runs, each sorted.
const RUN_ENTRIES: usize = 4_096;
/// The deepest nesting of folders below the searched one. Deeper folders are skipped.
const DEPTH_MAX: usize = 256;
/// The most folders that wait to be listed. Further ones are skipped.
const WAITING_MAX: usize = 100_000;

/// An entry that is not a folder.
#[derive(Debug)]
pub(super) struct Found {
    /// The folder that contains it.
    pub(super) folder: Arc<OwnedFd>,
    pub(super) name: Vec<u8>,
    /// The path relative to the searched folder.
    pub(super) path: Vec<u8>,
    pub(super) kind: FileType,
}

/// The state of a walk.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    workspace: &'a Workspace,
    base: Arc<OwnedFd>,
    base_path: WorkspacePath,
    /// The real path of the searched folder relative to the root, for ignore rules; empty for the
    /// root itself and for a folder outside.
    rules_path: Vec<u8>,
    waiting: Vec<Waiting>,
    listing: Option<Listing>,
    run: vec::IntoIter<Found>,
    pub(super) skipped: Skipped,
}

/// A folder that waits to be listed.
#[derive(Debug)]
struct Waiting {
    above: Option<Arc<Place>>,
    name: Vec<u8>,
}

/// The position of a folder in the tree, and its rules.
#[derive(Debug)]
struct Place {
    /// The path relative to the searched folder; empty for that folder itself.
    path: Vec<u8>,
    depth: usize,
    rules: Arc<Rules>,
}

/// The folder that is being listed.
#[derive(Debug)]
struct Listing {
    folder: Arc<OwnedFd>,
    entries: Dir,
    place: Arc<Place>,
    folders: Vec<Vec<u8>>,
}

impl<'a> Walk<'a> {
    /// Begins a walk of the folder that `path` names.
    pub(super) fn new(workspace: &'a Workspace, path: &WorkspacePath) -> Result<Self, Failure> {
        let base = Arc::new(workspace.folder(path)?);
        let rules_path = path_below_root(workspace, &base);
        Ok(Self {
            workspace,
            base,
            base_path: path.clone(),
            rules_path: rules_path.unwrap_or_default(),
            waiting: vec![Waiting {
                above: None,
                name: Vec::new(),
            }],
            listing: None,
            run: Vec::new().into_iter(),
            skipped: Skipped::default(),
        })
    }

    /// The next entry that is neither a folder nor ignored; `None` at the end.
    pub(super) fn next(&mut self, work: &Work) -> Result<Option<Found>, Failure> {
        loop {
            if let Some(found) = self.run.next() {
                return Ok(Some(found));
            }
            work.check()?;
            if let Some(listing) = self.listing.take() {
                self.list(listing);
            } else if let Some(folder) = self.waiting.pop() {
                self.enter(folder);
            } else {
                return Ok(None);
            }
        }
    }

    /// Converts a path relative to the searched folder to the path in the result, which a later
    /// request can use.
    pub(super) fn shown(&self, path: &[u8]) -> String {
        if path.is_empty() {
            return self.base_path.requested().to_owned();
        }
        self.base_path.join(path)
    }

    fn enter(&mut self, waiting: Waiting) {
        let path = match &waiting.above {
            Some(above) => joined(&above.path, &waiting.name),
            None => Vec::new(),
        };
        let opened = if path.is_empty() {
            Ok(Arc::clone(&self.base))
        } else {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            self.workspace
                .open_at(&self.base, &path, flags, Links::Refuse)
                .map(Arc::new)
        };
        let listed = opened.and_then(|folder| Ok((Dir::read_from(&folder)?, folder)));
        let (entries, folder) = match listed {
            Ok(listed) => listed,
            // The folder was removed after its name was read.
            Err(Errno::NOENT) => return,
            Err(error) => {
                let shown = self.shown(&path);
                self.skipped.add(&shown, reason(error));
                return;
            }
        };
        let (depth, rules) = match &waiting.above {
            Some(above) => (above.depth.saturating_add(1), Arc::clone(&above.rules)),
            None => (0, self.rules_above()),
        };
        let place = Place { path, depth, rules };
        self.list_first(folder, entries, place);
    }

    /// Lists the first run of a folder and reads the folder's ignore files.
    fn list_first(&mut self, folder: Arc<OwnedFd>, mut entries: Dir, mut place: Place) {
        let (names, complete) = self.read_run(&mut entries, &place);
        let mut present = Present::UNKNOWN;
        if complete {
            present = Present::default();
            names.iter().for_each(|(name, _)| present.note(name));
        }
        let rules_path = joined(&self.rules_path, &place.path);
        let (rules, failed) = place
            .rules
            .within(self.workspace, &folder, &rules_path, present);
        if let Some(reason) = failed {
            let shown = self.shown(&place.path);
            self.skipped.add(&shown, reason);
        }
        place.rules = rules;
        let mut listing = Listing {
            folder,
            entries,
            place: Arc::new(place),
            folders: Vec::new(),
        };
        self.sort_run(&mut listing, names);
        self.after_run(listing, complete);
    }

    /// Lists the next run of a large folder.
    fn list(&mut self, mut listing: Listing) {
        let (names, complete) = self.read_run(&mut listing.entries, &listing.place);
        self.sort_run(&mut listing, names);
        self.after_run(listing, complete);
    }

    fn after_run(&mut self, mut listing: Listing, complete: bool) {
        if !complete {
            self.listing = Some(listing);
            return;
        }
        listing.folders.sort_unstable();
        for name in listing.folders.into_iter().rev() {
            self.waiting.push(Waiting {
                above: Some(Arc::clone(&listing.place)),
                name,
            });
        }
    }

    /// Reads up to [`RUN_ENTRIES`] entries. The second value is true if there are no more.
    fn read_run(&mut self, entries: &mut Dir, place: &Place) -> (Vec<(Vec<u8>, FileType)>, bool) {
        let mut names = Vec::new();
        while names.len() < RUN_ENTRIES {
            match entries.read() {
                None => return (names, true),
                Some(Err(error)) => {
                    let shown = self.shown(&place.path);
                    self.skipped.add(&shown, reason(error));
                    return (names, true);
                }
                Some(Ok(entry)) => {
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        names.push((name.to_vec(), entry.file_type()));
                    }
                }
            }
        }
        (names, false)
    }

    /// Makes the next run of results, sorted, and adds the folders to `listing`.
    fn sort_run(&mut self, listing: &mut Listing, names: Vec<(Vec<u8>, FileType)>) {
        let mut run = Vec::with_capacity(names.len());
        let rules_path = joined(&self.rules_path, &listing.place.path);
        for (name, kind) in names {
            let kind = known_kind(&listing.folder, &name, kind);
            let is_folder = kind == FileType::Directory;
            if name == b".git"
                || listing
                    .place
                    .rules
                    .ignores(&joined(&rules_path, &name), is_folder)
            {
                continue;
            }
            if !is_folder {
                run.push(Found {
                    folder: Arc::clone(&listing.folder),
                    path: joined(&listing.place.path, &name),
                    name,
                    kind,
                });
            } else if let Some(reason) = self.skip_reason(listing) {
                let shown = self.shown(&joined(&listing.place.path, &name));
                self.skipped.add(&shown, reason);
            } else {
                listing.folders.push(name);
            }
        }
        run.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.run = run.into_iter();
    }

    /// The reason to skip a further folder in `listing`; `None` if it can be walked.
    fn skip_reason(&self, listing: &Listing) -> Option<&'static str> {
        if listing.place.depth >= DEPTH_MAX {
            Some("too many folders deep; search it by its path")
        } else if self.waiting.len().saturating_add(listing.folders.len()) >= WAITING_MAX {
            Some("too many folders in one search; search it by its path")
        } else {
            None
        }
    }

    /// The rules of all folders above the searched folder, from the root on.
    fn rules_above(&mut self) -> Arc<Rules> {
        let mut rules = Rules::none();
        if self.rules_path.is_empty() {
            return rules;
        }
        let mut path: &[u8] = b"";
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let real = if path.is_empty() { b"." } else { path };
            let opened = self.workspace.open_below_root(real, flags, Links::Refuse);
            let Ok(folder) = opened else {
                return rules;
            };
            let (within, failed) = rules.within(self.workspace, &folder, path, Present::UNKNOWN);
            if let Some(reason) = failed {
                self.skipped.add(&String::from_utf8_lossy(path), reason);
            }
            rules = within;
            // The path of the next folder ends before the next slash.
            let from = if path.is_empty() {
                0
            } else {
                path.len().saturating_add(1)
            };
            let rest = self.rules_path.get(from..).unwrap_or_default();
            match memchr::memchr(b'/', rest) {
                Some(slash) => {
                    path = self
                        .rules_path
                        .get(..from.saturating_add(slash))
                        .unwrap_or_default();
                }
                None => return rules,
            }
        }
    }
}

/// The kind of an entry; calls `fstatat` if the file system did not return it with the name.
fn known_kind(folder: &OwnedFd, name: &[u8], kind: FileType) -> FileType {
    if kind != FileType::Unknown {
        return kind;
    }
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_or(kind, |stat| FileType::from_raw_mode(stat.st_mode))
}

/// The real path of an open folder relative to the root; `None` if the folder is outside. Only
/// ignore rules depend on this path.
fn path_below_root(workspace: &Workspace, folder: &OwnedFd) -> Option<Vec<u8>> {
    let real = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd())).ok()?;
    let below = real.strip_prefix(workspace.canonical()).ok()?;
    below
        .components()
        .all(|component| matches!(component, Component::Normal(_)))
        .then(|| below.as_os_str().as_bytes().to_vec())
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() {
        return name.to_vec();
    }
    if name.is_empty() {
        return folder.to_vec();
    }
    [folder, b"/", name].concat()
}
