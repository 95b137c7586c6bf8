//! Installs third-party programs that tests run: once, below the target directory, in pinned
//! versions.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

/// Time after a failed installation during which [`once`] returns its error without another
/// attempt. Each test may run in its own process and would otherwise try again.
const TRY_AGAIN: Duration = Duration::from_secs(600);

/// A directory below the target directory that survives test runs, and a lock on it that is held
/// until the file is dropped.
pub fn directory(name: &str) -> (PathBuf, File) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(name);
    fs::create_dir_all(&dir).unwrap();
    let lock = File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    (dir, lock)
}

/// Runs `install` unless it succeeded for the same `pinned` before. If it failed within the last
/// 10 minutes, returns that error instead. The caller holds the lock on `dir`.
pub fn once(
    dir: &Path,
    name: &str,
    pinned: &str,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let file = |suffix: &str| dir.join(format!("{name}.{suffix}"));
    let (installed, failed) = (file("installed"), file("failed"));
    if fs::read_to_string(&installed).is_ok_and(|text| text == pinned) {
        return Ok(());
    }
    let tried = failed.metadata().and_then(|metadata| metadata.modified());
    if tried.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < TRY_AGAIN)) {
        return Err(fs::read_to_string(&failed).unwrap());
    }
    let result = install();
    match &result {
        Ok(()) => fs::write(installed, pinned).unwrap(),
        Err(why) => fs::write(failed, why).unwrap(),
    }
    result
}

/// Runs a command of an installation. The error is one line: `what` and the first non-empty line of
/// standard error, or, if the program cannot be started, its name and the reason.
pub fn run(what: &str, command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    let output = output.map_err(|error| format!("{program} cannot be run ({error})"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = said.lines().find(|line| !line.trim().is_empty());
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{what} ({})", first.unwrap_or_default().trim())),
    }
}

/// The pinned packages of pip's requirement files and of a `package.json`: `NAME VERSION, …`.
pub fn pinned(requirements: &[&str], package: &str) -> String {
    let package: Value = serde_json::from_str(package).unwrap();
    let of_npm = package["dependencies"].as_object().unwrap().iter();
    let of_npm = of_npm.map(|(name, version)| (name.as_str(), version.as_str().unwrap()));
    let lines = requirements.iter().flat_map(|text| text.lines());
    let of_pip = lines.filter_map(|line| line.split_once("=="));
    let named = of_pip.chain(of_npm);
    let named: Vec<_> = named
        // npm writes another name for a package as `npm:PACKAGE@VERSION`.
        .map(|(name, version)| format!("{name} {}", version.rsplit('@').next().unwrap()))
        .collect();
    named.join(", ")
}

/// The first version number in the output of a program, such as `1.24.4` in `go version go1.24.4`.
pub fn version_in(output: &str) -> Option<&str> {
    let words = output.split_whitespace();
    let mut words = words.map(|word| word.trim_matches(|char: char| !char.is_ascii_digit()));
    words.find(|word| word.contains('.'))
}

/// The beginning of the line with the date of a recorded document and the versions of the machine's
/// programs.
const RECORDED: &str = "Recorded on ";

/// That line, as of today.
pub fn recorded_today(with: &str) -> String {
    format!(
        "{RECORDED}{} with {with}.",
        OffsetDateTime::now_utc().date()
    )
}

/// That line of a document, which other days and machines do not make wrong.
pub fn recorded_line(document: &str) -> String {
    let line = document.lines().find(|line| line.starts_with(RECORDED));
    line.unwrap_or_default().to_owned()
}
