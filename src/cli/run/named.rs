//! Adds to a search what is obeyed since something names it: configurations of git, environment
//! loaders, hook runners, `PATH`, and symbolic links in the home directory.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::git_config::{self, Named};
use super::git_directory;
use super::loads::{named_in, names_others};
use super::obeyed::read_start;
use super::search::{Found, exists, is_hidden};
use super::version_control::IfMissing;

/// Limit on the bytes that are read of a file that names others.
const MAX_TEXT: u64 = 64 << 10;
/// Limit on the files that are read because they may name others.
const MAX_READ: usize = 2000;

/// Directories of hooks, each with the directory in which git executes them.
type Hooks = BTreeMap<PathBuf, PathBuf>;

/// Adds the files of writable directories that other files name. What git's settings name is
/// read-only, the others are compared. `home` is the home directory of the user.
pub fn add(found: &mut Found, home: Option<&Path>) -> Result<(), String> {
    let around = directories_around(found);
    let enclosing = around.iter().map(|directory| directory.join(".git"));
    let repositories = found.repositories.iter().cloned();
    let all: Vec<_> = repositories
        .chain(enclosing.filter(|git| exists(git)))
        .collect();
    let mut hooks = Hooks::new();
    for git in all {
        add_named_by_git(found, &git, &mut hooks)?;
    }
    add_loaded(found, &around, &hooks);
    add_programs(found);
    if let Some(home) = home {
        add_linked(found, home);
    }
    found.finish()
}

/// The directories above the writable ones, except the root. Their repositories and environment
/// loaders apply below them too.
fn directories_around(found: &Found) -> Vec<PathBuf> {
    let above = found
        .roots()
        .iter()
        .flat_map(|root| root.ancestors().skip(1));
    let above: BTreeSet<_> = above.filter(|path| path.parent().is_some()).collect();
    above.into_iter().map(Path::to_owned).collect()
}

/// Adds what the configuration of a repository names, and collects its directories of hooks. `git`
/// is the `.git` of its work tree, or a bare git directory.
fn add_named_by_git(found: &mut Found, git: &Path, hooks: &mut Hooks) -> Result<(), String> {
    let directory = git_directory::of_tree(git);
    let tree = match git.ends_with(".git") {
        true => git.parent().unwrap_or(git),
        // git executes the hooks of a bare repository in its git directory.
        false => git,
    };
    let files = git_directory::config_files(&directory);
    // A link in a writable directory may lead anywhere.
    let follows = |file: &Path| found.root_of(file).is_none();
    let mut own = git_config::named(files.clone(), &directory, tree, follows);
    let others = own.iter().filter_map(|named| match named {
        Named::Tree(other) => Some(git_config::named(files.clone(), &directory, other, follows)),
        _ => None,
    });
    let others: Vec<_> = others.flatten().collect();
    own.extend(others);
    let of_user = git_config::named(git_config::of_user(), &directory, tree, follows);
    hooks.insert(directory.join("hooks"), tree.to_owned());
    let own = own.into_iter().map(|named| (named, true));
    for (named, is_own) in own.chain(of_user.into_iter().map(|named| (named, false))) {
        let (path, if_missing) = match named {
            Named::Include(path) => (path, Some(IfMissing::File(""))),
            Named::Hooks(path) => {
                hooks.insert(path.clone(), tree.to_owned());
                (path, Some(IfMissing::Directory))
            }
            Named::Program(path) => (path, None),
            Named::Tree(_) => continue,
        };
        let Some(root) = found.root_of(&path) else {
            // A link outside may lead to a writable directory.
            if if_missing.is_some() || path.is_file() {
                found.compare_target(&path, false);
            }
            continue;
        };
        // A directory around the work tree cannot be read-only.
        if tree.starts_with(&path) {
            continue;
        }
        let has_parent = path.parent().is_some_and(Path::is_dir);
        match if_missing {
            None if is_own && !exists(&path) => found.compare(&path, &path),
            // A word of a value may be the name of a directory, which git does not execute.
            None if !path.is_file() => {}
            // In the settings of the user, the path concerns all repositories, so that most of them
            // lack the file.
            Some(if_missing) if is_own && has_parent => {
                found.pin_between(&root, path.parent().unwrap_or(&root));
                found.add(path, if_missing)?;
            }
            _ => found.add_or_compare(&root, &path),
        }
    }
    Ok(())
}

/// Adds what environment loaders, hook runners and hooks name. `around` are the directories above
/// the writable ones.
fn add_loaded(found: &mut Found, around: &[PathBuf], hooks: &Hooks) {
    let parent = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
    let is_naming = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        names_others(&name)
    };
    let inside = found.read_only.iter().chain(found.compared.keys()).cloned();
    let outside = around.iter().flat_map(|directory| files(directory));
    let naming = inside.chain(outside).filter(is_naming);
    let naming = naming.map(|file| (parent(&file), file));
    let of_runners = found.read_only.iter().filter(|path| has_hooks(path));
    let of_runners = of_runners.map(|path| (path.clone(), parent(path)));
    let hooks = hooks.clone().into_iter().chain(of_runners);
    let hooks = hooks.flat_map(|(hooks, base)| files(&hooks).map(move |file| (base.clone(), file)));
    // Files, each with the directory in which it is executed.
    let mut next: Vec<_> = naming.chain(hooks).collect();
    let mut known = BTreeSet::new();
    while let Some((base, file)) = next.pop() {
        if known.len() >= MAX_READ || !known.insert(file.clone()) {
            continue;
        }
        // A hook is often a link to a script in the work tree.
        if file.is_symlink() {
            found.compare_target(&file, false);
        }
        let target = fs::canonicalize(&file);
        let text = target
            .ok()
            .and_then(|file| read_start(CWD, &file, MAX_TEXT));
        let text = text.unwrap_or_default();
        for loaded in named_in(&file, &base, &text) {
            let path = loaded.path;
            if found.root_of(&path).is_none() || found.read_only.contains(&path) {
                continue;
            }
            if path.is_dir() {
                // The source code around an `.envrc` with `use flake .` is no setting.
                if loaded.at_once && !base.starts_with(&path) {
                    found.compare_all(&path, true);
                }
            } else if loaded.at_once || exists(&path) {
                // Not read-only: git cannot check out a branch with another version of such a file.
                found.compare(&path, &path);
                if loaded.at_once {
                    next.push((base.clone(), path));
                }
            }
        }
    }
}

/// Compares the directories of `PATH`, from which the host executes programs by their name.
fn add_programs(found: &mut Found) {
    let path = env::var_os("PATH").unwrap_or_default();
    for directory in env::split_paths(&path) {
        // A relative directory begins at the working directory, which may be each of them.
        for root in found.roots().to_vec() {
            found.compare_target(&root.join(&directory), true);
        }
        // Links in other directories may lead to programs in the writable ones.
        if directory.is_absolute() && found.root_of(&directory).is_none() {
            for link in entries(&directory).filter(|path| path.is_symlink() && !path.is_dir()) {
                found.compare_target(&link, true);
            }
        }
    }
}

/// Compares files and directories to which the home directory has hidden links, as the home
/// directories of people have who keep their settings in a repository.
fn add_linked(found: &mut Found, home: &Path) {
    let hidden = entries(home).filter(|path| is_hidden(path));
    let links = hidden.chain(entries(&home.join(".config")));
    for link in links.filter(|path| path.is_symlink()) {
        found.compare_target(&link, false);
    }
}

/// Whether a directory has the hooks of a hook runner, by its name.
fn has_hooks(directory: &Path) -> bool {
    directory.ends_with(".githooks") || directory.ends_with(".husky")
}

/// The files in a directory, and links whose target is missing, without git's examples of hooks.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let is_example = |path: &PathBuf| path.extension().is_some_and(|end| end == "sample");
    let is_file = |path: &PathBuf| path.is_file() || path.is_symlink();
    entries(directory).filter(move |path| is_file(path) && !is_example(path))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}
