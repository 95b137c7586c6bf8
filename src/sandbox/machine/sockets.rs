//! Finds the host's Unix sockets below bind mounts, in the kernel's table.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use crate::sandbox::Entry;

/// Entries that hide the sockets below bind mounts.
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

/// The sockets that the kernel lists with an absolute path.
fn listed_sockets() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    // The path is the last field, and may contain spaces.
    let paths = table
        .lines()
        .filter_map(|line| line.find(" /").map(|at| line.split_at(at).1));
    let paths = paths.map(|path| PathBuf::from(path.trim_start()));
    let there = paths.filter_map(|path| fs::canonicalize(path).ok());
    there
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()))
        .collect()
}
