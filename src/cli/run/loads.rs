//! Finds the files that environment loaders (direnv, mise) and hook runners execute or load besides
//! their own settings.

use std::path::{Path, PathBuf};

use super::obeyed::matches;
use crate::sandbox::machine::without_parents;

/// Names of files of environment loaders, which shells obey at every prompt.
const LOADERS: &[&str] = &[".envrc*", ".mise.*", "mise.*toml"];
/// Names of files of hook runners, which git starts.
const RUNNERS: &[&str] = &[".pre-commit-config.yaml", "*lefthook*.*"];
/// Words at the beginning of lines that load or execute a file, or add a directory to `PATH`, in the
/// languages of direnv and mise.
const LOADING: &[&str] = &[
    ".", "PATH_add", "_", "_.file", "_.path", "_.source", "dotenv*", "enter", "env_file", "eval",
    "exec", "file", "load*", "path_add", "source*", "use*",
];
/// Files that a loader loads without naming them, by the word that loads them.
const IMPLIED: &[(&str, &[&str])] = &[
    ("dotenv", &[".env"]),
    ("flake", &["flake.nix", "flake.lock"]),
    ("nix", &["shell.nix", "default.nix"]),
    (
        "devenv",
        &[
            "devenv.nix",
            "devenv.yaml",
            "devenv.lock",
            "devenv.local.nix",
        ],
    ),
    ("devbox", &["devbox.json", "devbox.lock"]),
];

/// A file that another file may load or execute.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded {
    pub path: PathBuf,
    /// Whether a shell loads it at every prompt.
    pub at_once: bool,
}

/// Whether a file names others that are loaded or executed with it.
pub fn names_others(name: &str) -> bool {
    let mut patterns = LOADERS.iter().chain(RUNNERS);
    patterns.any(|pattern| matches(pattern, name))
}

/// The paths that a file with this text names, relative to the directory in which it is executed.
/// Whether they exist is not checked.
pub fn named_in(file: &Path, directory: &Path, text: &str) -> Vec<Loaded> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_loader = LOADERS.iter().any(|pattern| matches(pattern, &name));
    let mut named = Vec::new();
    let mut is_task = false;
    for line in text.lines().map(str::trim_start) {
        // Comments, and files whose change only makes direnv load `.envrc` again.
        if line.starts_with('#') || line.starts_with("watch_") {
            continue;
        }
        if line.starts_with('[') {
            // The scripts of mise's tasks are only executed when the user starts the task.
            is_task = line.starts_with("[tasks");
        }
        let words: Vec<&str> = words(line).collect();
        let loads = words.first().is_some_and(|first| {
            let mut loading = LOADING.iter();
            loading.any(|pattern| matches(pattern, first))
        });
        let at_once = is_loader && loads && !is_task;
        let mut add = |path: PathBuf| named.push(Loaded { path, at_once });
        for (by, files) in IMPLIED.iter().filter(|_| at_once) {
            if words.iter().take(2).any(|word| word.starts_with(by)) {
                files.iter().for_each(|file| add(directory.join(file)));
            }
        }
        // The first word of a line that loads a file is a command or a key.
        for word in words.iter().skip(usize::from(at_once)) {
            let is_path = word.contains('/');
            let word = ["$PWD/", "${PWD}/", "./"]
                .iter()
                .find_map(|start| word.strip_prefix(start))
                .unwrap_or(word);
            let path = without_parents(&directory.join(word));
            if !at_once {
                add(path);
                continue;
            }
            let implied = IMPLIED
                .iter()
                .filter(|(by, _)| matches(&format!("{by}*"), word));
            for implied in implied.flat_map(|(_, files)| *files) {
                add(directory.join(implied));
            }
            // `use flake ./nix` loads files in a directory.
            let in_directory = IMPLIED.iter().flat_map(|(_, files)| *files);
            for implied in in_directory.filter(|_| is_path) {
                add(path.join(implied));
            }
            add(path);
        }
    }
    named
}

/// The words of a line that may be paths, in a shell script, TOML or YAML.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| c.is_whitespace() || "'\"`;|&()<>=,[]:#".contains(c));
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn files_that_loaders_and_hook_runners_name_are_found() {
        each_row(
            [
                (".envrc", "dotenv", ".env", true),
                (".envrc", "dotenv_if_exists .env.local", ".env.local", true),
                (".envrc", "source_env ./env/base.sh", "env/base.sh", true),
                (".envrc", ". env/base.sh", "env/base.sh", true),
                (".envrc", "source \"$PWD/env/base.sh\"", "env/base.sh", true),
                (".envrc", "use flake", "flake.nix", true),
                (".envrc", "use flake ./nix#shell", "nix/flake.nix", true),
                (".envrc", "use nix", "shell.nix", true),
                (".envrc", "eval \"$(tools/env)\"", "tools/env", true),
                (".envrc", "PATH_add bin", "bin", true),
                (".envrc", "export X=$(cat tools/x)", "tools/x", false),
                ("mise.local.toml", "_.file = '.env.json'", ".env.json", true),
                (
                    "mise.toml",
                    "_.source = [\"./a.sh\", \"b.sh\"]",
                    "b.sh",
                    true,
                ),
                (
                    ".mise.toml",
                    "enter = \"./hooks/enter\"",
                    "hooks/enter",
                    true,
                ),
                (
                    "lefthook.yml",
                    "    run: sh scripts/check.sh",
                    "scripts/check.sh",
                    false,
                ),
                (
                    ".pre-commit-config.yaml",
                    "  entry: tools/lint",
                    "tools/lint",
                    false,
                ),
            ],
            |(file, line, path, at_once)| {
                assert!(names_others(file), "{file}");
                let named = named_in(Path::new(file), Path::new("/w"), line);
                let path = Path::new("/w").join(path);
                assert!(
                    named.contains(&Loaded { path, at_once }),
                    "{line}: {named:?}"
                );
            },
        );
        let text = "watch_file Cargo.lock\n# source x";
        let watched = named_in(Path::new(".envrc"), Path::new("/w"), text);
        assert_eq!(watched, []);
        let text = "[tasks.build]\nfile = 'build.sh'\n[env]\n_.file = 'app.env'\n";
        let named = named_in(Path::new("mise.toml"), Path::new("/w"), text);
        for (path, at_once) in [("/w/build.sh", false), ("/w/app.env", true)] {
            let path = path.into();
            assert!(named.contains(&Loaded { path, at_once }), "{named:?}");
        }
    }
}
