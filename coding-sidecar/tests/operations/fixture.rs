//! A workspace in a temporary folder, beside a folder that no operation may reach.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coding_sidecar::failure::Failure;
use coding_sidecar::files::{
    EditRequest, EditResult, LsRequest, LsResult, ReadRequest, ReadResult, WriteRequest,
    WriteResult, edit, ls, read, write,
};
use coding_sidecar::search::{FindRequest, FindResult, GrepRequest, GrepResult, find, grep};
use coding_sidecar::work::Work;
use coding_sidecar::workspace::Workspace;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Text of a file outside of the workspace, which no result may contain.
pub const SECRET: &str = "outside-secret";

/// Name of a file outside of the workspace, which no listing may contain.
pub const ONLY_OUTSIDE: &str = "only-outside";

/// A workspace at `root`, beside the folder `base/outside`.
pub struct Fixture {
    // Removed when dropped.
    _folder: tempfile::TempDir,
    pub base: PathBuf,
    pub root: PathBuf,
    pub workspace: Workspace,
}

/// Work with a deadline a minute from now.
pub fn work() -> Work {
    Work::new(Instant::now() + Duration::from_secs(60))
}

fn request<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Fixture {
    /// A workspace at `base/root`; `base/outside` is outside of it.
    pub fn new() -> Self {
        Self::within(tempfile::tempdir().unwrap())
    }

    /// A workspace in memory if `/dev/shm` exists, for tests that a disk would slow down.
    pub fn in_memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::within(folder.unwrap())
    }

    fn within(folder: tempfile::TempDir) -> Self {
        let base = folder.path().canonicalize().unwrap();
        let root = base.join("root");
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(base.join("outside")).unwrap();
        fs::write(base.join("outside/secret"), SECRET).unwrap();
        fs::write(base.join("outside").join(ONLY_OUTSIDE), "").unwrap();
        let workspace = Workspace::open(&root, false).unwrap();
        Self {
            _folder: folder,
            base,
            root,
            workspace,
        }
    }

    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// Creates a file and its folders without the operations under test.
    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub fn bytes(&self, path: &str) -> Vec<u8> {
        fs::read(self.at(path)).unwrap()
    }

    pub fn outside_is_untouched(&self) -> bool {
        let mut names: Vec<_> = fs::read_dir(self.base.join("outside"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names == [ONLY_OUTSIDE, "secret"]
            && fs::read(self.base.join("outside/secret")).unwrap() == SECRET.as_bytes()
    }

    pub fn read(&self, value: Value) -> Result<ReadResult, Failure> {
        let request: ReadRequest = request(value);
        read(&self.workspace, request, &work())
    }

    /// The text of a whole file, which must fit into one result.
    pub fn text(&self, path: &str) -> Result<String, Failure> {
        match self.read(json!({"path": path}))? {
            ReadResult::Text { content, .. } => Ok(content),
            image => panic!("{image:?}"),
        }
    }

    pub fn write(&self, path: &str, content: &str) -> Result<WriteResult, Failure> {
        let request: WriteRequest = request(json!({"path": path, "content": content}));
        write(&self.workspace, request, &work())
    }

    pub fn edit(&self, path: &str, old: &str, new: &str) -> Result<EditResult, Failure> {
        let request: EditRequest = request(json!({"path": path, "oldText": old, "newText": new}));
        edit(&self.workspace, request, &work())
    }

    pub fn ls(&self, value: Value) -> Result<LsResult, Failure> {
        let request: LsRequest = request(value);
        ls(&self.workspace, request, &work())
    }

    pub fn find(&self, value: Value) -> Result<FindResult, Failure> {
        let request: FindRequest = request(value);
        find(&self.workspace, request, &work())
    }

    pub fn grep(&self, value: Value) -> Result<GrepResult, Failure> {
        let request: GrepRequest = request(value);
        grep(&self.workspace, request, &work())
    }

    /// Runs every operation on `path`, and returns their names and results. `write` and `edit`
    /// write the text `new`.
    pub fn everything(&self, path: &str) -> Vec<(&'static str, Result<String, Failure>)> {
        let shown = |value: Result<Value, serde_json::Error>| value.unwrap().to_string();
        vec![
            (
                "read",
                self.read(json!({"path": path}))
                    .map(|r| shown(serde_json::to_value(r))),
            ),
            (
                "write",
                self.write(path, "new")
                    .map(|r| shown(serde_json::to_value(r))),
            ),
            (
                "edit",
                self.edit(path, SECRET, "new")
                    .map(|r| shown(serde_json::to_value(r))),
            ),
            (
                "ls",
                self.ls(json!({"path": path}))
                    .map(|r| shown(serde_json::to_value(r))),
            ),
            (
                "find",
                self.find(json!({"path": path, "pattern": "*"}))
                    .map(|r| shown(serde_json::to_value(r))),
            ),
            (
                "grep",
                self.grep(json!({"path": path, "pattern": "."}))
                    .map(|r| shown(serde_json::to_value(r))),
            ),
        ]
    }
}

/// The message of a failure.
pub fn message<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    result.unwrap_err().to_string()
}
