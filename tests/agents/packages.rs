//! The agents' packages: installed once with npm, in the versions of `package.json`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PINNED: &str = include_str!("package.json");
/// How long a failed installation is not tried again: each test is a process of its own.
const TRY_AGAIN: Duration = Duration::from_secs(600);

/// The directory of the agents' programs; `None` where this machine cannot have them, which is
/// said in the output and in the summary that `scripts/test` prints.
pub fn programs(test: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("agents");
    fs::create_dir_all(&dir).unwrap();
    let lock = File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let said = match install(&dir) {
        Ok(()) => format!("ran: {test}"),
        Err(why) => format!("not run: {test}: {why}"),
    };
    println!("{said}");
    let mut summary = File::options();
    let summary = summary.append(true).create(true).open(dir.join("summary"));
    writeln!(summary.unwrap(), "{said}").unwrap();
    said.starts_with("ran")
        .then(|| dir.join("node_modules/.bin"))
}

fn install(dir: &Path) -> Result<(), String> {
    let (installed, failed) = (dir.join("installed.json"), dir.join("failed"));
    if fs::read_to_string(&installed).is_ok_and(|text| text == PINNED) {
        return Ok(());
    }
    let tried = failed.metadata().and_then(|metadata| metadata.modified());
    if tried.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < TRY_AGAIN)) {
        return Err(fs::read_to_string(&failed).unwrap());
    }
    fs::write(dir.join("package.json"), PINNED).unwrap();
    let result = npm(dir);
    match &result {
        Ok(()) => fs::write(installed, PINNED).unwrap(),
        Err(why) => fs::write(failed, why).unwrap(),
    }
    result
}

fn npm(dir: &Path) -> Result<(), String> {
    if let Err(error) = Command::new("npm").arg("--version").output() {
        return Err(format!("npm is not installed ({error})"));
    }
    let output = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
        .args(["--fetch-retries=1", "--fetch-timeout=60000"])
        .current_dir(dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = said.lines().next().unwrap_or_default();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("npm cannot install the agents ({first})")),
    }
}
