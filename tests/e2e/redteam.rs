//! Runs `tests/security/redteam-sandbox.sh` in sandboxes of `scripts/sandbox` and of the command
//! `run`. Listeners outside record packets and connections; none may arrive.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::attempts::Listeners;
use crate::fixture::{Fixture, INTERNET, ran};
use crate::summary::can_run;
use crate::support::Ran;

/// Minimum number of attempts that must fail; fewer mean that the script ended early. In a container,
/// the script leaves out writes to directories of the system.
const ATTEMPTS: usize = 150;
pub const ATTEMPTS_IN_A_CONTAINER: usize = 130;

/// Options of the script: addresses outside and an allowed host.
pub fn options() -> Vec<String> {
    let target = INTERNET.to_string();
    let options = ["--target", &target, "--target6", "2001:db8::2"];
    let allowed = ["--allowed", "api.example.com"];
    [&options[..], &allowed]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect()
}

pub fn script() -> File {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    File::open(root.join("tests/security/redteam-sandbox.sh")).unwrap()
}

/// Asserts that the sandbox prevented every attempt (the script prints `held`), that the script
/// made at least `attempts`, and that the listeners got no packet or connection.
pub fn assert_held(ran: &Ran, listeners: &Listeners, attempts: usize) {
    let said = format!("{}{}", ran.stdout, ran.stderr);
    let held = ran.stdout.lines().filter(|line| line.starts_with("held "));
    let open = ran.stdout.lines().filter(|line| line.starts_with("OPEN "));
    assert_eq!(open.collect::<Vec<_>>(), [""; 0]);
    assert!(held.count() >= attempts, "{said}");
    assert_eq!(ran.code, Some(0), "{said}");
    assert_eq!(listeners.received(), [""; 0]);
}

#[test]
fn every_red_team_attempt_is_prevented_in_a_network_namespace() {
    if !can_run("every_red_team_attempt_is_prevented_in_a_network_namespace") {
        return;
    }
    let fixture = Fixture::start();
    let listeners = Listeners::on(&fixture.internet, true);
    fixture.up("a", &[]);
    fixture.up("b", &[]);
    let mut command = fixture.script(&["exec", "a", "--", "bash", "-s", "--", "--kind", "netns"]);
    command.args(options()).stdin(script());
    let ran = ran(fixture.host.run(|| command.output().unwrap()));
    assert_held(&ran, &listeners, ATTEMPTS);
    let seen = fixture.origin.seen();
    assert!(
        seen.iter()
            .all(|seen| seen.authority.ends_with(".example.com")),
        "{seen:?}"
    );
}

#[test]
fn every_red_team_attempt_of_an_unprivileged_user_is_prevented_in_run() {
    if !can_run("every_red_team_attempt_of_an_unprivileged_user_is_prevented_in_run") {
        return;
    }
    let fixture = Fixture::start();
    let listeners = Listeners::on(&fixture.internet, true);
    // A program and a project that `nobody` can reach.
    let (programs, home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let binary = programs.path().join("unified-proxy");
    fs::copy(env!("CARGO_BIN_EXE_unified-proxy"), &binary).unwrap();
    for path in [programs.path(), home.path(), &binary] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let project = home.path().join("project");
    let prepare = "git init --quiet project && mkdir project/.claude project/.vscode && chown -R 65534:65534 .";
    let prepared = Command::new("bash")
        .args(["-ec", prepare])
        .current_dir(home.path())
        .status();
    assert!(prepared.unwrap().success());

    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&binary)
        .args(["run", "--quiet", "--allow", "api.example.com", "--"])
        .args(["bash", "-s", "--", "--kind", "run"])
        .args(options())
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .current_dir(&project)
        .stdin(script());
    let ran = ran(fixture.host.run(|| command.output().unwrap()));
    assert_held(&ran, &listeners, ATTEMPTS);
}
