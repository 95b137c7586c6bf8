//! Compares the manual pages and shell completions in `packaging/` with those generated from the
//! definitions of the commands.
//!
//! The files are committed, so that a package is built without running the program, and a review
//! shows the effect of a change. `RECORD_MANUAL=1 cargo nextest run manual::` regenerates them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};

use super::Cli;

const NAME: &str = "unified-proxy";

fn command() -> Command {
    Cli::command()
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
}

/// Adds a page for the program and one for each subcommand, for example
/// `unified-proxy-container-add.1`.
fn pages(files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(command(), directory.path()).unwrap();
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let page = fs::read(entry.path()).unwrap();
        files.insert(Path::new("man").join(entry.file_name()), page);
    }
}

fn completions(files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for (shell, name) in [
        (Shell::Bash, "unified-proxy.bash"),
        (Shell::Zsh, "_unified-proxy"),
        (Shell::Fish, "unified-proxy.fish"),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut command(), NAME, &mut script);
        files.insert(Path::new("completions").join(name), script);
    }
}

fn recorded(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let folders = ["man", "completions"].into_iter();
    let files = folders.flat_map(|folder| {
        let entries = fs::read_dir(directory.join(folder)).unwrap();
        entries.map(move |entry| Path::new(folder).join(entry.unwrap().file_name()))
    });
    files
        .map(|file| (file.clone(), fs::read(directory.join(file)).unwrap()))
        .collect()
}

#[test]
fn manual_pages_and_completions_match_the_definitions_of_the_commands() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    let mut files = BTreeMap::new();
    pages(&mut files);
    completions(&mut files);
    if std::env::var_os("RECORD_MANUAL").is_some() {
        for folder in ["man", "completions"] {
            let folder = directory.join(folder);
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder).unwrap();
        }
        for (file, bytes) in &files {
            fs::write(directory.join(file), bytes).unwrap();
        }
    }
    let recorded = recorded(&directory);
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    let advice = "run RECORD_MANUAL=1 cargo nextest run manual::";
    assert_eq!(names(&recorded), names(&files), "{advice}");
    for (file, bytes) in &files {
        assert!(
            recorded.get(file) == Some(bytes),
            "{} differs: {advice}",
            file.display()
        );
    }
}
