//! Finds the programs that the command and the launcher execute, and runs those of the launcher.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Finds the command's program as a shell would, and resolves links; `None` if there is no such
/// executable file. `directory` is the working directory.
pub fn find_program(name: &OsStr, directory: &Path) -> Option<PathBuf> {
    let name = Path::new(name);
    if name.components().count() > 1 {
        return executable(&directory.join(name));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find_map(|folder| executable(&directory.join(folder).join(name)))
}

/// Finds a program in `PATH` that the launcher may execute. Skips programs whose directory in
/// `PATH`, or whose resolved path, is in a directory that the command can write to.
pub fn trusted_program(name: &str, writable: &[PathBuf]) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut folders = env::split_paths(&path).filter(|folder| folder.is_absolute());
    folders.find_map(|folder| {
        let is_writable = |path: &Path| writable.iter().any(|root| path.starts_with(root));
        let found = executable(&folder.join(name))?;
        (!is_writable(&folder) && !is_writable(&found)).then_some(found)
    })
}

/// Runs a program without input, and returns its output; `None` if it fails.
pub fn output_of(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

fn executable(path: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(path).ok()?;
    let found = fs::metadata(&real).ok()?;
    (found.is_file() && found.permissions().mode() & 0o111 != 0).then_some(real)
}
