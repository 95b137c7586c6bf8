//! Placeholders for missing protected files. A placeholder exists as long as a run needs it.

use std::process::Command;

use rustix::process::Signal;

use super::protected::CHANGES;
use crate::attempts::check;
use crate::fixture::{Person, names};
use crate::processes;
use crate::support::{SOON, eventually};

#[test]
fn placeholders_stay_while_a_run_needs_them_and_the_last_run_removes_them() {
    let Some(person) = Person::new() else { return };
    let wait = ["sh", "-c", "echo ready; read -r line"];
    let mut runs = [person.spawn(&[], &wait), person.spawn(&[], &wait)];
    for run in &mut runs {
        let mut ready = [0; 6];
        std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut ready).unwrap();
    }
    let [first, second] = &mut runs;
    drop(first.stdin.take());
    first.wait().unwrap();
    assert!(names(&person.work()).contains(&".envrc".to_owned()));
    // While the second run lasts, the placeholders stay, and a third run cannot change them.
    check(&person, &[], CHANGES, &[".envrc", ".git"], 20);
    drop(second.stdin.take());
    second.wait().unwrap();
    // The third run created `new` and `newdir`.
    assert_eq!(names(&person.work()), ["new", "newdir"]);
    let kept = person
        .home()
        .join(".local/state/unified-proxy/placeholders");
    // Only the lock file, `order`, stays.
    assert_eq!(names(&kept), ["order"]);
}

#[test]
fn placeholders_of_a_run_that_was_killed_are_removed_by_the_next() {
    let Some(person) = Person::new() else { return };
    let mut run = person.spawn(&[], &["sh", "-c", "echo ready; read -r line"]);
    let mut ready = [0; 6];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let pids = processes::descendants(run.id());
    processes::send(run.id(), Signal::KILL);
    run.wait().unwrap();
    processes::end_within("the run has ended", &pids, SOON);
    person.sh(&[], "true").ok();
    eventually("no file is left", SOON, || names(&person.work()).is_empty());
}

#[test]
fn files_that_a_command_creates_beside_placeholders_are_kept() {
    let Some(person) = Person::new() else { return };
    person
        .sh(&[], "echo mine > made; mkdir sub; echo x > sub/.envrc-not")
        .ok();
    assert_eq!(names(&person.work()), ["made", "sub"]);
    let output = Command::new("find")
        .arg(person.work())
        .args(["-name", ".*"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{}/sub/.envrc-not\n", person.work().display())
    );
}

/// OpenCode does not start if it cannot write to an empty `.opencode`. So a run sees a writable
/// directory in the place of a missing or empty one.
#[test]
fn a_missing_opencode_directory_is_writable_during_the_run_and_one_with_files_is_read_only() {
    let Some(person) = Person::new() else { return };
    let script = "mkdir -p .opencode/plugin && echo evil > .opencode/plugin/x.ts && cat .opencode/plugin/x.ts; \
        mv .opencode away || rmdir .opencode || echo stays";
    let ran = person.sh(&["--quiet"], script);
    assert_eq!(ran.stdout, "evil\nstays\n", "{ran:?}");
    assert_eq!(names(&person.work()), [""; 0]);

    person.write("project/.opencode/agent.md", "mine\n");
    let ran = person.sh(
        &["--quiet"],
        "echo evil > .opencode/x; echo evil > .opencode/agent.md; cat .opencode/agent.md",
    );
    assert_eq!(ran.stdout, "mine\n", "{ran:?}");
    assert_eq!(names(&person.work().join(".opencode")), ["agent.md"]);
}
