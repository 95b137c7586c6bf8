//! Finds programs outside the system's directories.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::read_only;
use super::system::is_system;
use crate::sandbox::Entry;

/// Parts of a home directory that hold programs, and settings without secrets. The start-up files
/// of shells are not among them, since people export keys there.
const FROM_HOME: [&str; 38] = [
    ".asdf",
    ".bun/bin",
    ".cargo/bin",
    ".config/fish/functions",
    ".config/git/ignore",
    ".config/htop",
    ".config/nvim",
    ".deno/bin",
    ".dotnet/dotnet",
    ".dotnet/host",
    ".dotnet/sdk",
    ".dotnet/shared",
    ".editorconfig",
    ".fnm",
    ".go",
    ".goenv",
    ".inputrc",
    ".jenv",
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/claude",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".npm-global",
    ".nvm",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman/candidates",
    ".tmux.conf",
    ".vimrc",
    ".volta",
    "go/bin",
];
/// Directories of which every sandbox has its own instance.
const OWN: [&str; 5] = ["/proc", "/dev", "/sys", "/run", "/tmp"];
/// Directories beside a `bin` directory, with files that the programs in `bin` load.
const LIBRARIES: [&str; 7] = [
    "Cellar", "include", "lib", "lib64", "libexec", "opt", "share",
];
/// Files and directories that only the root of a tool has, each with what its programs load besides
/// [`LIBRARIES`]: of Python environments, conda, Node.js, Java and Go. Other files may hold secrets:
/// `.condarc`, and conda's `conda-meta/state` and `etc`, which have variables of environments.
const TOOLS: [(&str, &[&str]); 5] = [
    ("pyvenv.cfg", &["pyvenv.cfg"]),
    ("conda-meta", &["condabin", "shell", "ssl"]),
    ("include/node", &[]),
    ("lib/modules", &["conf", "jmods", "release"]),
    ("pkg/tool", &["VERSION", "go.env", "pkg", "src"]),
];
/// Below the home directory, the directory whose `share` and `lib` hold the data of all programs.
const DATA: &str = ".local";

/// Entries for programs outside the system's directories: known parts of the home directory without
/// secrets, every directory of PATH, and the command's own program.
///
/// `home` is the home directory inside the sandbox. The machine's directory at that path and the
/// directories above it are never shown as a whole. `real_home` is the home directory outside, if
/// parts of it are shown. `resolve` returns the target of a path, or `None` to leave the path out,
/// for example because a process inside a sandbox could change it.
pub fn programs(
    home: &Path,
    real_home: Option<&Path>,
    program: Option<&Path>,
    resolve: impl Fn(&Path) -> Option<PathBuf>,
) -> Vec<Entry> {
    let mut wanted = BTreeSet::new();
    if let Some(real_home) = real_home {
        wanted.extend(FROM_HOME.iter().map(|name| real_home.join(name)));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    wanted.extend(env::split_paths(&path).flat_map(|directory| with_libraries(directory, home)));
    wanted.extend(program.map(Path::to_owned));
    let mut entries = Vec::new();
    for at in wanted.into_iter().filter(|at| at.is_absolute()) {
        let Some(from) = resolve(&at) else {
            continue;
        };
        let opens_home = home.starts_with(&from) || from == Path::new("/");
        let is_own = OWN
            .iter()
            .any(|own| from == Path::new(own) || at == Path::new(own));
        if opens_home || is_own {
            continue;
        }
        // If the parent's path contains a symbolic link, `at` cannot be reached: the link does not
        // exist inside.
        let is_real = |path: &Path| fs::canonicalize(path).is_ok_and(|real| real == path);
        let is_reached = at.parent().is_some_and(is_real);
        if is_reached && !is_system(&at) {
            entries.push(read_only(&from, &at));
        }
        if from != at && !is_system(&from) {
            entries.push(read_only(&from, &from));
        }
    }
    entries
}

/// Returns a directory of PATH. If its name is `bin` or `sbin`, also returns what exists beside it
/// of [`LIBRARIES`] and, in the root of a tool, of [`TOOLS`], except
///
/// - in the home directory itself and in its [`DATA`], where `share` and `lib` hold other files too,
/// - in a directory of the system, whose libraries are visible anyway.
fn with_libraries(directory: PathBuf, home: &Path) -> Vec<PathBuf> {
    let is_bin = directory.ends_with("bin") || directory.ends_with("sbin");
    let is_shared = |parent: &Path| parent == home || parent == home.join(DATA);
    let root = directory
        .parent()
        .filter(|parent| is_bin && !is_system(parent) && !is_shared(parent));
    let beside = root.into_iter().flat_map(|root| {
        let tools = TOOLS.iter().filter(|(mark, _)| root.join(mark).exists());
        let names = LIBRARIES.iter().chain(tools.flat_map(|(_, names)| *names));
        names
            .map(|name| root.join(name))
            .filter(|path| path.exists())
    });
    let mut found: Vec<_> = beside.collect();
    found.push(directory);
    found
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn what_programs_load_is_shown_beside_them_except_in_directories_with_other_data() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home");
        each_row(
            [
                ("tool", &["lib", "etc"][..], &["lib"][..]),
                (
                    "home/opt/node",
                    &["include/node", "lib", "share", "data"],
                    &["include", "lib", "share"],
                ),
                (
                    "home/.venvs/app",
                    &["pyvenv.cfg", "lib", ".env"],
                    &["lib", "pyvenv.cfg"],
                ),
                (
                    "home/miniconda3",
                    &["conda-meta", "etc", "lib", "envs", ".condarc", "pkgs"],
                    &["lib"],
                ),
                (
                    "home/jdk",
                    &["lib/modules", "conf", "release"],
                    &["lib", "conf", "release"],
                ),
                (
                    "home/sdk/go",
                    &["pkg/tool", "src", "VERSION"],
                    &["VERSION", "pkg", "src"],
                ),
                (
                    "home/.some-tool",
                    &["credentials.json", "etc", "lib"],
                    &["lib"],
                ),
                ("home/.local", &["lib", "share", "etc"], &[]),
                ("home", &["lib", "share", "etc"], &[]),
            ],
            |(tool, made, shown)| {
                let tool = root.path().join(tool);
                let bin = tool.join("bin");
                for name in made.iter().chain(&["bin"]) {
                    fs::create_dir_all(tool.join(name)).unwrap();
                }
                let mut expected: Vec<_> = shown.iter().map(|name| tool.join(name)).collect();
                expected.push(bin.clone());
                assert_eq!(with_libraries(bin, &home), expected);
            },
        );
    }
}
