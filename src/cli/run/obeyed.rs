//! Names of files and directories that tools on the host execute, or obey as settings, without
//! asking the user.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::sandbox::Entry;

/// Names in a working directory that shells, editors and agents execute or obey. Each has the text
/// of the placeholder file that is made if the name is missing; `None` stands for an empty
/// directory, which git does not track. OpenCode and Crush do not start if a directory has the name
/// of their settings file, so those names get a file.
pub const OBEYED: [(&str, Option<&str>); 15] = [
    (".aider.conf.yml", None),
    (".claude", None),
    (".codex", None),
    (".cursor", None),
    (".devcontainer", None),
    (".devcontainer.json", None),
    (".envrc", None),
    (".gemini", None),
    (".idea", None),
    (".mcp.json", None),
    (".opencode", None),
    (".vscode", None),
    ("crush.json", Some(NO_SETTINGS)),
    ("opencode.json", Some(NO_SETTINGS)),
    ("opencode.jsonc", Some(NO_SETTINGS)),
];
/// The text of a settings file without settings.
pub const NO_SETTINGS: &str = "{}\n";
/// Names that tools execute or obey only if the user has configured that. They are protected only
/// if they exist.
const OBEYED_IF_THERE: [&str; 12] = [
    ".exrc",
    ".gdbinit",
    ".githooks",
    ".husky",
    ".lldbinit",
    ".mise.toml",
    ".nvim.lua",
    ".nvimrc",
    ".pre-commit-config.yaml",
    ".yarnrc.yml",
    ".zed",
    "mise.toml",
];
/// The settings directory of OpenCode, to which OpenCode writes.
const WRITTEN: &str = ".opencode";
/// Limit on the bytes that are copied from `.git/info/exclude`. The rest is left out.
const MAX_EXCLUDES: u64 = 1 << 20;

/// Whether a name is in one of the lists.
pub fn is_obeyed(name: &str) -> bool {
    OBEYED.iter().any(|(obeyed, _)| *obeyed == name) || OBEYED_IF_THERE.contains(&name)
}

/// Returns the entries of the sandbox's file system that keep placeholders from disturbing the
/// command. Call it after the placeholders are made. Placeholder files are added to git's excludes,
/// so that the command does not commit them. An empty `.opencode` is covered by a writable scratch
/// directory, since OpenCode fails if it cannot write there.
pub fn covers(roots: &[PathBuf]) -> Vec<Entry> {
    let excluded = roots.iter().filter_map(|root| excluded_in(root));
    let written = roots.iter().map(|root| root.join(WRITTEN));
    let empty = written.filter(|at| is_directory(at) && is_empty(at));
    let scratch = empty.map(|at| Entry::Scratch { at, mode: 0o700 });
    excluded.chain(scratch).collect()
}

/// Whether a path is an empty directory, like a placeholder.
pub fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

/// Returns a replacement of `.git/info/exclude` that also lists the placeholder files; `None` if
/// there are no placeholder files, or the work tree has no `.git/info/exclude`.
fn excluded_in(root: &Path) -> Option<Entry> {
    let git = root.join(".git");
    let at = git.join("info/exclude");
    if !is_directory(&git) || !is_directory(&git.join("info")) {
        return None;
    }
    let is_placeholder = |name: &str| {
        let text = read_start(CWD, &root.join(name), NO_SETTINGS.len() as u64 + 1);
        text.as_deref() == Some(NO_SETTINGS)
    };
    let names = OBEYED.iter().map(|(name, _)| *name);
    let added: String = names
        .filter(|name| is_placeholder(name))
        .map(|name| format!("/{name}\n"))
        .collect();
    if added.is_empty() {
        return None;
    }
    let text = format!("{}\n{added}", read_start(CWD, &at, MAX_EXCLUDES)?);
    Some(Entry::Replace { at, text })
}

/// Reads the first `most` bytes of a file; `None` if it is not a regular file or cannot be read. A
/// relative path begins at `directory`. A link at the end of the path is not followed.
pub fn read_start(directory: impl AsFd, path: &Path, most: u64) -> Option<String> {
    // Non-blocking, since opening a FIFO without a writer would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(directory, path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_of_opencode_is_covered_and_a_filled_one_is_not() {
        let work = tempfile::tempdir().unwrap();
        let at = work.path().join(".opencode");
        fs::create_dir(&at).unwrap();
        let roots = [work.path().to_owned()];
        let (path, mode) = (at.clone(), 0o700);
        assert_eq!(covers(&roots), [Entry::Scratch { at: path, mode }]);
        fs::write(at.join("agent.md"), "").unwrap();
        assert_eq!(covers(&roots), []);
    }

    #[test]
    fn placeholder_files_are_added_to_the_excludes() {
        let work = tempfile::tempdir().unwrap();
        let info = work.path().join(".git/info");
        fs::create_dir_all(&info).unwrap();
        fs::write(info.join("exclude"), "*.log").unwrap();
        fs::write(work.path().join("opencode.json"), NO_SETTINGS).unwrap();
        fs::write(work.path().join("opencode.jsonc"), "{ \"own\": 1 }\n").unwrap();
        let text = "*.log\n/opencode.json\n".to_owned();
        let at = info.join("exclude");
        assert_eq!(
            covers(&[work.path().to_owned()]),
            [Entry::Replace { at, text }]
        );
    }
}
