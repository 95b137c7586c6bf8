//! The ports in memory.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::contract::{
    BoxFuture, Container, FileLock, FileVersion, Outbound, OutboundError, Replacement, SecretFiles,
    SecretSource, SecretText, System, Tasks,
};

/// Files by path, and links to them.
#[derive(Clone, Default)]
pub(super) struct Files(Arc<Mutex<Content>>);

#[derive(Default)]
struct Content {
    files: HashMap<PathBuf, (i64, Vec<u8>)>,
    links: HashMap<PathBuf, PathBuf>,
    changes: i64,
}

impl Files {
    pub(super) fn write(&self, path: &Path, text: impl Into<Vec<u8>>) {
        let mut content = self.0.lock();
        content.changes += 1;
        let file = (content.changes, text.into());
        content.files.insert(path.to_owned(), file);
    }

    pub(super) fn text(&self, path: &Path) -> Option<Vec<u8>> {
        let content = self.0.lock();
        let (_, text) = content.files.get(path)?;
        Some(text.clone())
    }

    /// A change of the file that leaves its text as it is.
    pub(super) fn touch(&self, path: &Path) {
        let text = self.text(path).unwrap();
        self.write(path, text);
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) {
        let (_, text) = self.0.lock().files.remove(from).unwrap();
        self.write(to, text);
    }

    pub(super) fn link(&self, path: &Path, link: &Path) {
        let mut content = self.0.lock();
        content.links.insert(link.to_owned(), path.to_owned());
    }

    fn version(&self, path: &Path) -> io::Result<FileVersion> {
        let path = self.real_path(path);
        let content = self.0.lock();
        let (change, text) = content.files.get(&path).ok_or(io::ErrorKind::NotFound)?;
        Ok(FileVersion {
            inode: 1,
            changed: (*change, 0),
            length: text.len() as u64,
        })
    }
}

impl SecretFiles for Files {
    fn source(&self, _: &Path) -> Arc<dyn SecretSource> {
        unreachable!("no login here has a client secret");
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        self.version(path).map(drop)
    }

    fn real_path(&self, path: &Path) -> PathBuf {
        let content = self.0.lock();
        let target = content.links.get(path);
        target.map_or_else(|| path.to_owned(), Clone::clone)
    }

    fn read(&self, path: &Path, known: Option<&FileVersion>) -> io::Result<Option<SecretText>> {
        let version = self.version(path)?;
        if known == Some(&version) {
            return Ok(None);
        }
        let text = self.text(&self.real_path(path)).unwrap();
        let text = Zeroizing::new(text);
        Ok(Some(SecretText { version, text }))
    }

    fn lock(&self, _: &Path) -> Result<Box<dyn FileLock>, String> {
        Ok(Box::new(Lock))
    }

    fn replace(&self, path: &Path) -> io::Result<Box<dyn Replacement>> {
        self.version(path)?;
        Ok(Box::new(Beside {
            files: self.clone(),
            path: self.real_path(path),
            text: Vec::new(),
        }))
    }
}

struct Lock;

impl FileLock for Lock {}

struct Beside {
    files: Files,
    path: PathBuf,
    text: Vec<u8>,
}

impl Replacement for Beside {
    fn fill(&mut self, text: &[u8]) -> io::Result<()> {
        self.files.version(&self.path)?;
        self.text = text.to_owned();
        Ok(())
    }

    fn commit(self: Box<Self>) -> io::Result<FileVersion> {
        self.files.write(&self.path, self.text);
        self.files.version(&self.path)
    }
}

/// A token endpoint that answers once it is let.
pub(super) struct Endpoint {
    pub(super) asked: AtomicUsize,
    pub(super) answers: Semaphore,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self {
            asked: AtomicUsize::new(0),
            answers: Semaphore::new(0),
        }
    }
}

impl Outbound for Endpoint {
    fn send<'a>(
        &'a self,
        _: &'a Arc<System>,
        _: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, OutboundError>> {
        Box::pin(async {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let answer = self.answers.acquire().await;
            answer.unwrap().forget();
            let body =
                json!({ "access_token": "second", "refresh_token": "rotated", "expires_in": 3600 });
            Ok(Response::new(Bytes::from(body.to_string())))
        })
    }

    fn look_up<'a>(
        &'a self,
        _: &'a Arc<Container>,
        _: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, OutboundError>> {
        unreachable!("tokens are nobody's look-up");
    }
}

/// Spawns on the test's runtime.
pub(super) struct TestTasks;

impl Tasks for TestTasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(work);
    }
}
