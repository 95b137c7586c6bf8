//! What a command sees: the system read-only, a home of its own, the directories it works in.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::places::{Places, without_parents};
use super::protected::listed_sockets;
use crate::sandbox::{Access, Entry};

/// Directories of the system. They hold programs and settings; what else a machine may keep at
/// its root does not appear.
const SYSTEM: [&str; 13] = [
    "bin", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "sbin", "snap", "usr",
    "var",
];
/// The same below /var.
const SYSTEM_VAR: [&str; 6] = [
    "cache/fontconfig",
    "lib/ca-certificates",
    "lib/dpkg",
    "lib/flatpak",
    "lib/snapd/snap",
    "lib/texmf",
];
/// Parts of a home directory that hold programs, and settings without secrets. Not among them:
/// shells' start-up files, which people export keys in.
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
/// Directories of which a sandbox has its own.
const OWN: [&str; 5] = ["/proc", "/dev", "/sys", "/run", "/tmp"];
/// Directories beside a `bin` that its programs load from.
const LIBRARIES: [&str; 7] = [
    "Cellar", "include", "lib", "lib64", "libexec", "opt", "share",
];
/// Where programs find the system's roots in one file; ours is put there for those that read no
/// variable.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
];
/// Files of /etc that are looked at to hide what is not for everybody.
const MAX_SETTINGS: usize = 20_000;

/// Where the certificates are inside.
pub const CERTIFICATES: &str = "/run/unified-proxy/certs";

/// The tree of a run on top of the system's, before the directories that the command works in are
/// protected.
pub fn entries(
    system: Vec<Entry>,
    places: &Places,
    certificates: &Path,
    program: Option<&Path>,
) -> Vec<Entry> {
    let mut entries = system;
    for (at, mode) in [
        ("/tmp", 0o1777),
        ("/run", 0o755),
        ("/var/tmp", 0o1777),
        ("/run/lock", 0o1777),
    ] {
        let at = at.into();
        entries.push(Entry::Scratch { at, mode });
    }
    for (at, to) in [("/var/run", "/run"), ("/var/lock", "/run/lock")] {
        let (at, to) = (at.into(), to.into());
        entries.push(Entry::Link { at, to });
    }
    entries.push(Entry::Scratch {
        at: places.home.clone(),
        mode: 0o700,
    });
    entries.extend(programs(places, program));
    entries.push(read_only(certificates, Path::new(CERTIFICATES)));
    entries.extend(network_settings());
    for at in ROOTS.map(Path::new) {
        if let Some(at) = plain_file(at) {
            entries.push(read_only(&certificates.join("ca-bundle.pem"), &at));
        }
    }
    entries.extend(work(places));
    entries
}

fn read_only(from: &Path, at: &Path) -> Entry {
    Entry::Bind {
        from: from.to_owned(),
        at: at.to_owned(),
        access: Access::ReadOnly,
    }
}

/// The directories that the command works in, those below others after them.
fn work(places: &Places) -> Vec<Entry> {
    let bind = |path: &PathBuf, access| Entry::Bind {
        from: path.clone(),
        at: path.clone(),
        access,
    };
    let writable = places.writable.iter().map(|path| (path, Access::Writable));
    let readable = places.readable.iter().map(|path| (path, Access::ReadOnly));
    let mut work: Vec<_> = writable.chain(readable).collect();
    work.sort_by_key(|(path, _)| path.components().count());
    work.into_iter()
        .map(|(path, access)| bind(path, access))
        .collect()
}

/// The directories of the system.
pub fn system() -> Vec<Entry> {
    let mut entries = Vec::new();
    let root = Path::new("/");
    let below_var = SYSTEM_VAR.map(|name| Path::new("/var").join(name));
    for at in SYSTEM.map(|name| root.join(name)) {
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_symlink() => {
                if let Ok(to) = fs::read_link(&at) {
                    entries.push(Entry::Link { at, to });
                }
            }
            Ok(_) if at.ends_with("var") => {
                let there = below_var.iter().filter(|path| path.is_dir());
                entries.extend(there.map(|path| read_only(path, path)));
            }
            Ok(_) => entries.push(read_only(&at, &at)),
            Err(_) => {}
        }
    }
    entries.extend(private_settings().into_iter().map(|at| Entry::Hide { at }));
    entries
}

/// What of /etc is not for everybody. A person who is root could read it, and so could the
/// command; to everybody else it is closed anyway.
fn private_settings() -> Vec<PathBuf> {
    let mut private = Vec::new();
    let mut directories = vec![PathBuf::from("/etc")];
    let mut seen = 0_usize;
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            seen += 1;
            let Ok(found) = entry.metadata() else {
                continue;
            };
            let (kind, mode) = (found.file_type(), found.permissions().mode());
            let needed = if kind.is_dir() { 0o005 } else { 0o004 };
            if kind.is_symlink() {
                continue;
            }
            if mode & needed != needed || !(kind.is_dir() || kind.is_file()) || seen > MAX_SETTINGS
            {
                private.push(entry.path());
            } else if kind.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    private
}

/// Names resolve through the proxy alone.
fn network_settings() -> Vec<Entry> {
    let resolver = "nameserver 127.0.0.1\noptions timeout:30 attempts:2\n";
    let hosts = "127.0.0.1 localhost unified-proxy sandbox\n::1 localhost\n";
    let mut entries = Vec::new();
    for (at, text) in [("/etc/resolv.conf", resolver), ("/etc/hosts", hosts)] {
        let text = text.to_owned();
        match fs::symlink_metadata(at) {
            Ok(found) if found.is_file() => entries.push(Entry::Replace {
                at: at.into(),
                text,
            }),
            // As systemd-resolved has it: a link below /run, which is empty inside.
            Ok(_) => {
                let to = fs::read_link(at).unwrap_or_default();
                let to = without_parents(&Path::new("/etc").join(to));
                let to = match to.strip_prefix("/var/run") {
                    Ok(rest) => Path::new("/run").join(rest),
                    Err(_) => to,
                };
                if to.starts_with("/run") {
                    entries.push(Entry::File { at: to, text });
                } else if let Some(at) = plain_file(&to) {
                    entries.push(Entry::Replace { at, text });
                }
            }
            Err(_) => {}
        }
    }
    entries
}

/// Where a path leads to, if that is a file.
fn plain_file(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok().filter(|path| path.is_file())
}

/// Programs outside the system's directories: those of the home directory that are known to hold
/// no secret, every directory of PATH, and the command's own.
fn programs(places: &Places, program: Option<&Path>) -> Vec<Entry> {
    let mut wanted = BTreeSet::new();
    if let Some(home) = &places.real_home {
        wanted.extend(FROM_HOME.iter().map(|name| home.join(name)));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    wanted.extend(
        env::split_paths(&path).flat_map(|directory| with_libraries(directory, &places.home)),
    );
    wanted.extend(program.map(Path::to_owned));
    let mut entries = Vec::new();
    for at in wanted.into_iter().filter(|at| at.is_absolute()) {
        let Some(from) = places.resolve_outside(&at) else {
            continue;
        };
        let opens_home = places.home.starts_with(&from) || from == Path::new("/");
        let is_own = OWN
            .iter()
            .any(|own| from == Path::new(own) || at == Path::new(own));
        if opens_home || is_own {
            continue;
        }
        // A link on the way to it would not be there inside.
        let is_reached = at
            .parent()
            .is_some_and(|parent| canonical(parent) == Some(parent.into()));
        if is_reached && !is_system(&at) {
            entries.push(read_only(&from, &at));
        }
        if from != at && !is_system(&from) {
            entries.push(read_only(&from, &from));
        }
    }
    entries
}

fn canonical(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

fn is_system(path: &Path) -> bool {
    let first = path.components().nth(1);
    let first = first.and_then(|part| part.as_os_str().to_str());
    first.is_some_and(|first| first != "var" && SYSTEM.contains(&first))
}

/// A directory of programs, with the directories beside it that programs load from; not in the
/// home directory, where a `share` or `lib` holds more than that.
fn with_libraries(directory: PathBuf, home: &Path) -> Vec<PathBuf> {
    let is_bin = directory.ends_with("bin") || directory.ends_with("sbin");
    let beside = directory
        .parent()
        .filter(|parent| is_bin && !is_system(parent) && !parent.starts_with(home));
    let beside = beside.map(|parent| LIBRARIES.map(|name| parent.join(name)));
    let mut found: Vec<_> = beside
        .into_iter()
        .flatten()
        .filter(|path| path.is_dir())
        .collect();
    found.push(directory);
    found
}

/// Hides the sockets of the host that could be reached through what is bound.
pub fn hidden_sockets(entries: &[Entry]) -> Vec<Entry> {
    let mut hidden = Vec::new();
    for socket in listed_sockets() {
        for entry in entries {
            if let Entry::Bind { from, at, .. } = entry
                && let Ok(below) = socket.strip_prefix(from)
            {
                let at = match below.as_os_str().is_empty() {
                    true => at.clone(),
                    false => at.join(below),
                };
                hidden.push(Entry::Hide { at });
            }
        }
    }
    hidden.dedup();
    hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_beside_programs_are_shown_but_for_those_of_the_home_directory() {
        let root = tempfile::tempdir().unwrap();
        for name in [
            "tool/bin",
            "tool/lib",
            "tool/etc",
            "home/.local/bin",
            "home/.local/share",
        ] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        let (tool, home) = (root.path().join("tool"), root.path().join("home"));
        assert_eq!(
            with_libraries(tool.join("bin"), &home),
            [tool.join("lib"), tool.join("bin")]
        );
        let own = home.join(".local/bin");
        assert_eq!(with_libraries(own.clone(), &home), [own]);
    }
}
