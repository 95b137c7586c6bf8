//! The files that a command sees: the read-only system, a private home directory, and the
//! directories of the run.

use std::env;
use std::path::{Path, PathBuf};

use super::directories::RunDirectories;
use crate::sandbox::machine;
use crate::sandbox::{Access, Entry};

/// The last directory of `PATH` in the sandbox, which contains this program.
pub const OWN_PROGRAMS: &str = "/run/unified-proxy/bin";
const OWN_NAME: &str = "unified-proxy";

/// Returns the entries of the sandbox's file system: `system`, the home directory, certificates,
/// programs and the directories of the run. The files in these directories are not protected yet.
pub fn entries(
    system: Vec<Entry>,
    directories: &RunDirectories,
    certificates: &Path,
    program: Option<&Path>,
) -> Vec<Entry> {
    let mut entries = system;
    entries.extend(machine::own(&directories.home, certificates));
    // This program, for agents that speak MCP over stdio only. The entry is left out if the
    // program's file was replaced since the start.
    let own = env::current_exe().ok().filter(|path| path.is_file());
    entries
        .extend(own.map(|path| machine::read_only(&path, &Path::new(OWN_PROGRAMS).join(OWN_NAME))));
    let resolve = |path: &Path| directories.resolve_outside(path);
    let real_home = directories.real_home.as_deref();
    entries.extend(machine::programs(
        &directories.home,
        real_home,
        program,
        resolve,
    ));
    entries.extend(work(directories));
    entries
}

/// The entries of the directories of the run, parents before their subdirectories.
fn work(directories: &RunDirectories) -> Vec<Entry> {
    let (writable, readable) = (directories.writable.iter(), directories.readable.iter());
    let writable = writable.map(|path| (path, Access::Writable));
    let readable = readable.map(|path| (path, Access::ReadOnly));
    let mut work: Vec<_> = writable.chain(readable).collect();
    work.sort_by_key(|(path, _)| path.components().count());
    let bind = |(path, access): (&PathBuf, Access)| Entry::Bind {
        from: path.clone(),
        at: path.clone(),
        access,
    };
    work.into_iter().map(bind).collect()
}
