//! The files of a bundle, from a directory or a gzipped tar archive, within bounds.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use addons::contract::FileVersion;
use aws_lc_rs::digest::{Context, SHA256};
use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::error::LoadError;
use crate::secret_files;

/// Limit on the total unpacked size of the files that are read, in bytes. Large policies have
/// several hundred KiB; data documents have more.
const MAX_BUNDLE_BYTES: u64 = 16 << 20;

/// Limit on the unpacked size of an archive, in bytes.
const MAX_ARCHIVE_BYTES: u64 = 2 * MAX_BUNDLE_BYTES;
/// Limit on the number of files and directories in a bundle, including those that are not read.
const MAX_ENTRIES: usize = 4096;
/// Limit on the number of directories above a file. For a data file, the names of these directories
/// are the path of the data.
const MAX_DEPTH: usize = 16;

/// The name of the file with a policy that people set.
const POLICY: &str = "policy.rego";

/// The files of a bundle by path from its root. Directories are separated by `/`.
#[derive(Debug, Default)]
pub struct Files {
    /// The content of each policy, data file and manifest; other files are not read.
    pub content: BTreeMap<String, Vec<u8>>,
    bytes: u64,
}

/// The versions of each bundle's files, by the bundle's path. For a bundle whose files cannot be
/// listed, the error.
#[derive(Default, PartialEq, Eq)]
pub struct BundleFiles(BTreeMap<PathBuf, Result<Versions, String>>);

/// The version of each file that is read, by its path from the bundle's root; an archive has the
/// empty path.
type Versions = BTreeMap<String, FileVersion>;

impl BundleFiles {
    /// Reads the versions; blocks.
    pub fn of(bundles: impl IntoIterator<Item = PathBuf>) -> Self {
        let files = bundles.into_iter().map(|path| {
            let versions = versions(&path).map_err(|error| error.to_string());
            (path, versions)
        });
        Self(files.collect())
    }

    /// Reads the versions of the same bundles; blocks.
    pub fn read_again(&self) -> Self {
        Self::of(self.0.keys().cloned())
    }
}

impl Files {
    /// The files of a bundle with one policy.
    pub fn of_policy(source: &str) -> Self {
        let file = (POLICY.to_owned(), source.as_bytes().to_vec());
        Self {
            content: [file].into(),
            bytes: 0,
        }
    }

    /// Reads a directory or an archive. Blocks.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let metadata = metadata(path)?;
        let mut files = Self::default();
        if metadata.is_dir() {
            for (relative, path) in list(path)? {
                files.add_file(relative, open(&path)?)?;
            }
        } else if metadata.is_file() {
            files.add_archive(open(path)?)?;
        } else {
            return Err(LoadError::NoBundle(path.display().to_string()));
        }
        Ok(files)
    }

    /// SHA-256 of the files' paths and contents. Equal for a directory and an archive of it.
    pub fn digest(&self) -> [u8; 32] {
        let files = self.content.iter();
        digest(files.flat_map(|(path, content)| [path.as_bytes(), content]))
    }

    fn add_archive(&mut self, compressed: impl Read) -> Result<(), LoadError> {
        // `add_file` limits only the files that are read. This limit also bounds the headers, the
        // padding and the files that are not read.
        let text = MultiGzDecoder::new(compressed).take(MAX_ARCHIVE_BYTES);
        let mut archive = Archive::new(text);
        let added = self.add_entries(&mut archive);
        // `tar` may take the end of `text` for the end of the archive, and leave out files.
        if archive.into_inner().limit() == 0 {
            return Err(LoadError::TooLarge(MAX_ARCHIVE_BYTES));
        }
        added
    }

    fn add_entries(&mut self, archive: &mut Archive<impl Read>) -> Result<(), LoadError> {
        let mut entries = 0;
        for entry in archive.entries().map_err(LoadError::Archive)? {
            let mut entry = entry.map_err(LoadError::Archive)?;
            count(&mut entries)?;
            let path = entry.path().map_err(LoadError::Archive)?;
            let relative = normal_form(&path)?;
            match entry.header().entry_type() {
                EntryType::Directory | EntryType::XGlobalHeader => {}
                EntryType::Regular | EntryType::Continuous => {
                    if self.content.contains_key(&relative) {
                        return Err(LoadError::Twice(relative));
                    }
                    if is_read(&relative) {
                        self.add_file(relative, &mut entry)?;
                    }
                }
                _ => return Err(LoadError::NotRegular(relative)),
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: String, file: impl Read) -> Result<(), LoadError> {
        let left = MAX_BUNDLE_BYTES.saturating_sub(self.bytes);
        let mut content = Vec::new();
        let read = file.take(left.saturating_add(1)).read_to_end(&mut content);
        let length = read.map_err(|error| LoadError::Unreadable(path.clone(), error))?;
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        if length > left {
            return Err(LoadError::TooLarge(MAX_BUNDLE_BYTES));
        }
        self.bytes = self.bytes.saturating_add(length);
        self.content.insert(path, content);
        Ok(())
    }
}

fn versions(path: &Path) -> Result<Versions, LoadError> {
    let files = match metadata(path)?.is_dir() {
        true => list(path)?,
        false => vec![(String::new(), path.to_owned())],
    };
    let versions = files.into_iter().map(|(relative, path)| {
        let metadata = metadata(&path)?;
        Ok((relative, secret_files::version(&metadata)))
    });
    versions.collect()
}

fn metadata(path: &Path) -> Result<Metadata, LoadError> {
    fs::metadata(path).map_err(|error| unreadable(path, error))
}

fn open(path: &Path) -> Result<File, LoadError> {
    File::open(path).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: io::Error) -> LoadError {
    LoadError::Unreadable(path.display().to_string(), error)
}

/// The files of a directory that are read: the path of each from the bundle's root, and its path on
/// disk.
fn list(directory: &Path) -> Result<Vec<(String, PathBuf)>, LoadError> {
    let (mut files, mut entries) = (Vec::new(), 0);
    let mut pending = vec![(directory.to_owned(), String::new(), 0_usize)];
    while let Some((directory, prefix, depth)) = pending.pop() {
        let unreadable = |error| unreadable(&directory, error);
        for entry in fs::read_dir(&directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                return Err(LoadError::Path(path.display().to_string()));
            };
            let relative = format!("{prefix}{name}");
            count(&mut entries)?;
            // `file_type` does not follow links.
            let kind = entry.file_type().map_err(unreadable)?;
            if kind.is_dir() {
                if depth >= MAX_DEPTH {
                    return Err(LoadError::TooDeep(relative, MAX_DEPTH));
                }
                pending.push((path, relative + "/", depth.saturating_add(1)));
            } else if !kind.is_file() {
                return Err(LoadError::NotRegular(relative));
            } else if is_read(&relative) {
                files.push((relative, path));
            }
        }
    }
    Ok(files)
}

/// Counts a file or directory.
fn count(entries: &mut usize) -> Result<(), LoadError> {
    *entries = entries.saturating_add(1);
    if *entries > MAX_ENTRIES {
        return Err(LoadError::TooMany(MAX_ENTRIES));
    }
    Ok(())
}

/// The file's name without its directories.
pub fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Whether a bundle's file is read: policies without their tests, data, and the manifest.
fn is_read(path: &str) -> bool {
    match file_name(path) {
        ".manifest" => path == ".manifest",
        "data.json" | "data.yaml" | "data.yml" => true,
        name => name.ends_with(".rego") && !name.ends_with("_test.rego"),
    }
}

/// SHA-256 of the parts, each with its length, so that the same bytes split elsewhere have another
/// digest.
pub fn digest<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&part.len().to_be_bytes());
        context.update(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

/// The path of an archive's entry from the bundle's root; `/a`, `./a` and `a` are the same file.
/// Refuses paths that lead out of the bundle.
fn normal_form(path: &Path) -> Result<String, LoadError> {
    let refused = || LoadError::Path(path.display().to_string());
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str().ok_or_else(refused)?),
            // `opa build` writes paths that begin with a slash, which is harmless since no entry is
            // written to disk.
            Component::CurDir | Component::RootDir => {}
            _ => return Err(refused()),
        }
    }
    if parts.len() > MAX_DEPTH.saturating_add(1) {
        return Err(LoadError::TooDeep(parts.join("/"), MAX_DEPTH));
    }
    Ok(parts.join("/"))
}
