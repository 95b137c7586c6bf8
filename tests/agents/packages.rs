//! Installs the agents' packages once with npm, in the versions of `package.json`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::installed;

const PINNED: &str = include_str!("package.json");

/// The directory of the agents' programs. `None` if they cannot be installed; then the output and
/// the summary that `scripts/test` prints have the reason.
pub fn programs(test: &str) -> Option<PathBuf> {
    let (dir, _lock) = installed::directory("agents");
    let result = installed::once(&dir, "npm", PINNED, || npm(&dir));
    crate::support::summarize("agents", test, &result);
    result.is_ok().then(|| dir.join("node_modules/.bin"))
}

fn npm(dir: &Path) -> Result<(), String> {
    fs::write(dir.join("package.json"), PINNED).unwrap();
    installed::run(
        "npm cannot install the agents",
        Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
            .args(["--fetch-retries=1", "--fetch-timeout=60000"])
            .current_dir(dir),
    )
}
