//! Watches protected files from outside the sandbox. If another process of the host replaces or
//! removes such a file, the file loses its read-only mount in the sandbox, so the launcher ends the
//! command.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::net::unix::pipe;

/// The size of the buffer for inotify events, in bytes.
const BUFFER: usize = 16 << 10;

/// An inotify watch of files and directories, through their parent directories.
pub struct FileWatch {
    events: OwnedFd,
    readiness: pipe::Receiver,
    /// The identity of each file when the watch began.
    files: BTreeMap<PathBuf, Identity>,
}

/// Device and inode numbers.
type Identity = (u64, u64);

impl FileWatch {
    /// Starts to watch the files that exist. Must be called within a runtime.
    pub fn watch(files: &BTreeSet<PathBuf>) -> io::Result<Self> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let changes = WatchFlags::MOVE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let directories: BTreeSet<&Path> = files.iter().filter_map(|path| path.parent()).collect();
        for directory in directories {
            inotify::add_watch(&events, directory, changes)?;
        }
        let files = files
            .iter()
            .filter_map(|path| Some((path.clone(), identity(path)?)));
        Ok(Self {
            readiness: pipe::Receiver::from_owned_fd_unchecked(events.try_clone()?)?,
            files: files.collect(),
            events,
        })
    }

    /// Waits until a file is replaced or removed, and returns its path. Cancel safe.
    pub async fn lost(&self) -> PathBuf {
        loop {
            // An error is ignored here, since `read` returns it too.
            let _ = self.readiness.readable().await;
            let read = self.readiness.try_io(|| self.read());
            // If the events cannot be read, all files are checked.
            if read.is_ok_and(|concerns_us| !concerns_us) {
                continue;
            }
            if let Some(path) = self.first_lost() {
                return path;
            }
        }
    }

    /// Reads all pending events, and returns whether one of them may concern a watched file. Fails
    /// if there is no event.
    fn read(&self) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.events, &mut buffer);
        let mut concerns_us = false;
        let mut event = reader.next()?;
        loop {
            let name = event.file_name().map(|name| name.to_bytes());
            // An event has no name if the queue overflowed, or if a watched directory was removed.
            concerns_us |= name.is_none_or(|name| {
                let mut names = self.files.keys().filter_map(|path| path.file_name());
                names.any(|watched| watched.as_encoded_bytes() == name)
            });
            event = match reader.next() {
                Err(Errno::AGAIN) => return Ok(concerns_us),
                next => next?,
            };
        }
    }

    fn first_lost(&self) -> Option<PathBuf> {
        let mut files = self.files.iter();
        let lost = files.find(|(path, was)| identity(path) != Some(**was));
        lost.map(|(path, _)| path.clone())
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn replacing_a_watched_file_is_reported_but_writing_to_it_or_to_others_is_not() {
        let work = tempfile::tempdir().unwrap();
        let config = work.path().join("config");
        fs::write(&config, "old").unwrap();
        let file_watch = FileWatch::watch(&BTreeSet::from([config.clone()])).unwrap();
        fs::write(work.path().join("index.lock"), "").unwrap();
        fs::rename(work.path().join("index.lock"), work.path().join("index")).unwrap();
        fs::write(&config, "written in place").unwrap();
        let soon = Duration::from_millis(200);
        assert!(tokio::time::timeout(soon, file_watch.lost()).await.is_err());
        fs::write(work.path().join("config.lock"), "new").unwrap();
        fs::rename(work.path().join("config.lock"), &config).unwrap();
        let lost = tokio::time::timeout(Duration::from_secs(5), file_watch.lost()).await;
        assert_eq!(lost.unwrap(), config);
    }
}
