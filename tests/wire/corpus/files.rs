//! The recorded files: the tests write them with `RECORD_CORPUS=1`, and compare them otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Limit on the lines shown of the difference of one file.
const SHOWN: usize = 12;

/// Recorded files as pairs of path and text.
pub type Transcripts = Vec<(String, String)>;

/// The files that one test recorded: text by path relative to the test's folder.
#[derive(Default)]
pub struct Recorded(BTreeMap<String, String>);

impl Recorded {
    /// Adds a file. Panics if a file with this path was added before.
    pub fn add(&mut self, path: String, text: String) {
        let before = self.0.insert(path.clone(), text);
        assert!(before.is_none(), "{path} is recorded twice");
    }

    /// The paths of the files added so far.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// With `RECORD_CORPUS=1`, writes the files to `tests/corpus/FOLDER` and deletes all others
    /// there. Otherwise, compares them with the folder, and panics if any file differs, is new or
    /// is no longer recorded; shows at most [`SHOWN`] differing lines per file.
    pub fn settle(&self, folder: &str) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        let root = root.join(folder);
        let mut before = BTreeMap::new();
        read(&root, &root, &mut before);
        if std::env::var_os("RECORD_CORPUS").is_some_and(|value| value == "1") {
            return self.write(&root, &before);
        }
        let mut failures = Vec::new();
        for (path, text) in &self.0 {
            match before.get(path) {
                Some(old) if old == text => {}
                Some(old) => failures.push(format!("{path} differs:\n{}", difference(old, text))),
                None => failures.push(format!("{path} was never recorded:\n{text}")),
            }
        }
        let unused = before.keys().filter(|path| !self.0.contains_key(*path));
        failures.extend(unused.map(|path| format!("no test records {path} any more")));
        assert!(
            failures.is_empty(),
            "{} files in tests/corpus/{folder} differ, are new or are stale \
             (RECORD_CORPUS=1 updates the folder):\n\n{}",
            failures.len(),
            failures.join("\n\n")
        );
    }

    fn write(&self, root: &Path, before: &BTreeMap<String, String>) {
        for path in before.keys().filter(|path| !self.0.contains_key(*path)) {
            fs::remove_file(root.join(path)).unwrap();
        }
        for (path, text) in &self.0 {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }
}

/// Adds the text of each file below a folder to `files`, by the path relative to `root`.
fn read(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    for path in paths {
        if path.is_dir() {
            read(root, &path, files);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().display().to_string();
        files.insert(name, fs::read_to_string(&path).unwrap());
    }
}

/// Compares lines with the same number. Lists each pair that differs, with the line of `old` first.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let mut lines = Vec::new();
    for number in 0..old.len().max(new.len()) {
        let (was, is) = (old.get(number), new.get(number));
        if was != is {
            let one = |sign: char, line: Option<&&str>| line.map(|line| format!("  {sign} {line}"));
            lines.extend(one('-', was));
            lines.extend(one('+', is));
        }
    }
    if lines.is_empty() {
        lines.push("  only line endings or the final newline differ".to_owned());
    }
    let left = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if left > 0 {
        lines.push(format!("  and {left} more lines"));
    }
    lines.join("\n")
}
