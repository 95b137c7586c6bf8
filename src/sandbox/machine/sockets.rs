//! Hides the host's Unix sockets below bind mounts. The kernel's table has the paths of most
//! sockets. Sockets that servers bound by a relative path are searched for in the mounts.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::sandbox::Entry;

/// The kernel's table of Unix sockets.
const TABLE: &str = "/proc/net/unix";
/// The index of the address among the fields of `/proc/net/unix`.
const ADDRESS: usize = 7;
/// Directories of installed packages. They are not searched: they hold many files, but no sockets
/// of servers that people start.
const OF_PACKAGES: [&str; 4] = ["/usr", "/nix", "/gnu", "/snap"];
/// The most directory entries that are searched; more are an error.
const MAX_FILES: usize = 2_000_000;

/// Entries that hide the host's Unix sockets below the bind mounts. `searched` are mounted
/// directories that the caller has searched for sockets. The other directories are searched only if
/// a socket of the machine has a relative address. Fails if the table cannot be read, or if the
/// searched directories have more than `MAX_FILES` entries.
pub fn hidden_sockets(entries: &[Entry], searched: &[PathBuf]) -> Result<Vec<Entry>, String> {
    // Addresses need not be UTF-8.
    let table = fs::read(TABLE).map_err(|error| format!("{TABLE}: {error}"))?;
    let mut hidden = Vec::new();
    for socket in listed_sockets(&table) {
        for entry in entries {
            if let Entry::Bind { from, at, .. } = entry
                && let Ok(below) = socket.strip_prefix(from)
            {
                // Unlike `join`, adds no slash if the socket is the mount itself.
                let at = at.iter().chain(below).collect();
                hidden.push(Entry::Hide { at });
            }
        }
    }
    hidden.dedup();
    let text = String::from_utf8_lossy(&table);
    if text.lines().skip(1).any(has_relative_address) {
        hidden.extend(unlisted_sockets(entries, searched)?);
    }
    Ok(hidden)
}

/// The sockets that the table lists with an absolute path.
fn listed_sockets(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    // The path is the last field, and may contain spaces.
    let paths = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.windows(2).position(|pair| pair == b" /")?;
        line.get(at + 1..)
    });
    let paths = paths.filter_map(|path| fs::canonicalize(OsStr::from_bytes(path)).ok());
    paths.filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()))
}

/// Searches the bind mounts for sockets, except those in `searched` and [`OF_PACKAGES`].
fn unlisted_sockets(entries: &[Entry], searched: &[PathBuf]) -> Result<Vec<Entry>, String> {
    let mut left = MAX_FILES;
    let mut hidden = Vec::new();
    for entry in entries {
        if let Entry::Bind { from, at, .. } = entry
            && !searched.contains(from)
            && !OF_PACKAGES
                .iter()
                .any(|packages| from.starts_with(packages))
        {
            let below = sockets_below(from, &mut left)?;
            let below = below.iter().filter_map(|path| path.strip_prefix(from).ok());
            hidden.extend(below.map(|path| Entry::Hide { at: at.join(path) }));
        }
    }
    Ok(hidden)
}

fn has_relative_address(line: &str) -> bool {
    let address = line.split_ascii_whitespace().nth(ADDRESS);
    address.is_some_and(|address| !address.starts_with(['/', '@']))
}

fn sockets_below(root: &Path, left: &mut usize) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut next = vec![root.to_owned()];
    while let Some(directory) = next.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            *left = left.checked_sub(1).ok_or_else(|| {
                format!(
                    "{} and the other directories of programs hold more than {MAX_FILES} files, \
                     too many to look through for sockets of the host",
                    root.display()
                )
            })?;
            match entry.file_type() {
                Ok(kind) if kind.is_socket() => found.push(entry.path()),
                Ok(kind) if kind.is_dir() => next.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use testkit::each_row;

    use super::*;

    #[test]
    fn a_relative_address_is_recognised() {
        let line = |address: &str| {
            format!("0000000000000000: 00000002 00000000 00010000 0001 01 7051491{address}")
        };
        each_row(
            [
                (" relative.sock", true),
                (" below/relative.sock", true),
                (" /run/absolute.sock", false),
                (" @abstract", false),
                ("", false),
            ],
            |(address, relative)| assert_eq!(has_relative_address(&line(address)), relative),
        );
    }

    #[test]
    fn a_listed_socket_is_found_even_if_an_address_in_the_table_is_not_utf8() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("a socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let field = "0000000000000000: 00000002 00000000 00010000 0001 01 7051491 ";
        let mut table = format!("{field}@").into_bytes();
        table.extend(b"\xff\n");
        table.extend(format!("{field}{}\n", socket.display()).bytes());
        assert_eq!(listed_sockets(&table).collect::<Vec<_>>(), [socket]);
    }

    #[test]
    fn every_socket_below_a_directory_is_found_and_too_many_files_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let _listener = UnixListener::bind(below.join("socket")).unwrap();
        let found = sockets_below(root.path(), &mut 10).unwrap();
        assert_eq!(found, [below.join("socket")]);
        assert!(sockets_below(root.path(), &mut 2).is_err());
    }
}
