//! Entries for the directories of the system, read-only and without the files that only some users
//! may read. Also the entries for directories and files of which every sandbox has its own
//! instance.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{plain_file, read_only, user, without_parents};
use crate::sandbox::Entry;

/// Directories of the system with programs and settings. [`system`] shows no other directory at the
/// machine's root.
const SYSTEM: [&str; 13] = [
    "bin", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "sbin", "snap", "usr",
    "var",
];
/// The visible directories below /var.
const SYSTEM_VAR: [&str; 6] = [
    "cache/fontconfig",
    "lib/ca-certificates",
    "lib/dpkg",
    "lib/flatpak",
    "lib/snapd/snap",
    "lib/texmf",
];
/// Files in which programs find the system's root certificates. The proxy's bundle is mounted over
/// them, for programs that read no variable with the path of a bundle.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
];
/// The most entries of /etc whose permissions are checked; further entries are hidden.
const MAX_SETTINGS: usize = 20_000;

/// Limit on the links that are followed one after another, as in the kernel.
const MAX_LINKS: usize = 40;

/// The path of the certificates inside.
pub const CERTIFICATES: &str = "/run/unified-proxy/certs";

/// Entries that every sandbox has besides the system: its own directories, the proxy's CA, a bundle
/// with this CA in place of the system's bundles, name resolution through the proxy only, and an
/// account for the user.
pub fn own(home: &Path, certificates: &Path) -> Vec<Entry> {
    let mut entries = Vec::new();
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
        at: home.to_owned(),
        mode: 0o700,
    });
    entries.push(read_only(certificates, Path::new(CERTIFICATES)));
    entries.extend(network_settings());
    entries.extend(user::missing(home));
    for at in ROOTS.map(Path::new) {
        if let Some(at) = plain_file(at) {
            entries.push(read_only(&certificates.join("ca-bundle.pem"), &at));
        }
    }
    entries
}

/// Entries for the directories of the system.
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
                // A link could not be mounted, and what it leads to may be anything.
                let is_real = |path: &&PathBuf| fs::canonicalize(path).is_ok_and(|to| to == **path);
                let there = below_var.iter().filter(is_real);
                entries.extend(there.map(|path| read_only(path, path)));
            }
            Ok(_) => entries.push(read_only(&at, &at)),
            Err(_) => {}
        }
    }
    entries.extend(private_settings().into_iter().map(|at| Entry::Hide { at }));
    entries
}

/// Files and directories of /etc that only some users may read. If root starts the sandbox, the
/// command could read them unless they are hidden. Also special files, and entries beyond
/// [`MAX_SETTINGS`].
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

/// Entries that make names resolve through the proxy only.
fn network_settings() -> Vec<Entry> {
    let resolver = "nameserver 127.0.0.1\noptions timeout:30 attempts:2\n";
    let hosts = "127.0.0.1 localhost unified-proxy sandbox\n::1 localhost\n";
    let files = [("/etc/resolv.conf", resolver), ("/etc/hosts", hosts)];
    let entry = |(at, text): (&str, &str)| {
        fs::symlink_metadata(at).ok()?;
        let (at, text) = (followed(Path::new(at))?, text.to_owned());
        match is_shown(&at) {
            true if at.is_file() => Some(Entry::Replace { at, text }),
            // The link leads to nothing, inside as outside.
            true => None,
            false => Some(Entry::File { at, text }),
        }
    };
    files.into_iter().filter_map(entry).collect()
}

/// The path to which links lead inside. The machine's links exist there only in the directories
/// that [`system`] shows, so a path outside them, such as `/run/systemd/resolve/stub-resolv.conf`
/// or `/mnt/wsl/resolv.conf`, is the end, whatever it is on the machine. `None` if the links do not
/// end, or end where a sandbox has files of its own.
fn followed(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let mut above: Vec<_> = path.ancestors().collect();
        above.reverse();
        let to = above.into_iter().find_map(|link| {
            let to = match link.to_str() {
                Some("/var/run") => PathBuf::from("/run"),
                Some("/var/lock") => PathBuf::from("/run/lock"),
                _ if is_shown(link) => fs::read_link(link).ok()?,
                _ => return None,
            };
            let rest = path.strip_prefix(link).ok()?;
            let to = link.parent()?.join(to);
            Some(without_parents(&match rest.as_os_str().is_empty() {
                true => to,
                false => to.join(rest),
            }))
        });
        match to {
            Some(to) => path = to,
            None => {
                let is_own = ["/proc", "/dev"].iter().any(|own| path.starts_with(own));
                return (!is_own && path.parent().is_some()).then_some(path);
            }
        }
    }
    None
}

/// Whether [`system`] shows the machine's file at a path.
fn is_shown(path: &Path) -> bool {
    let mut below_var = SYSTEM_VAR.iter();
    is_system(path) || below_var.any(|name| path.starts_with(Path::new("/var").join(name)))
}

/// Whether a path is in one of the [`SYSTEM`] directories other than /var, or is one of them.
pub fn is_system(path: &Path) -> bool {
    let first = path.components().nth(1);
    let first = first.and_then(|part| part.as_os_str().to_str());
    first.is_some_and(|first| first != "var" && SYSTEM.contains(&first))
}
