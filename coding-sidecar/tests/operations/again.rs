//! Runs a test again in a mount namespace or as another user.

use std::fs::{File, OpenOptions, Permissions, create_dir_all};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// The environment variable that is set in the second run of a test.
const AGAIN: &str = "SIDECAR_TEST_AGAIN";
/// The name of the copied test binary.
const COPY: &str = "operations";

/// Whether this process is the second run.
pub fn is_again() -> bool {
    std::env::var_os(AGAIN).is_some()
}

/// Runs the test `name` in a process that the command `wrapper` starts, and panics if the test
/// fails. If `wrapper` cannot run here, notes that in the summary of `scripts/test`.
pub fn run(name: &str, wrapper: &[&str]) {
    let folder = reachable_copy();
    let binary = folder.path().join(COPY);
    let wrap = |command: &[&str]| {
        let mut wrapped = Command::new(wrapper[0]);
        wrapped.args(&wrapper[1..]).args(command);
        wrapped
    };
    let binary_shown = binary.to_str().unwrap();
    let possible = wrap(&[binary_shown, "--list"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !possible {
        let reason = format!("{} cannot run here", wrapper.join(" "));
        note(&format!("not run: {name}: {reason}"));
        return;
    }
    let output = wrap(&[binary_shown, "--exact", name, "--nocapture"])
        .env(AGAIN, "1")
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}");
    assert!(
        shown.contains("1 passed"),
        "no test has the name {name}: {shown}"
    );
}

/// A copy of this test's binary in a folder that every user can reach.
fn reachable_copy() -> TempDir {
    let folder = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o755))
        .tempdir()
        .unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), folder.path().join(COPY)).unwrap();
    folder
}

/// Adds a line to the summary of `scripts/test`.
pub fn note(line: &str) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    create_dir_all(target.join("coding-sidecar")).unwrap();
    let mut options: OpenOptions = File::options();
    let summary = target.join("coding-sidecar/summary");
    let mut summary = options.create(true).append(true).open(summary).unwrap();
    writeln!(summary, "{line}").unwrap();
}
