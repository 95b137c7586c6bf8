//! System calls under every table of the machine, capabilities, limits.

use super::people;
use crate::attempts::{check, python};
use crate::fixture::Person;
use crate::support::Ran;

const ATTEMPTS: &str = include_str!("system_calls.py");

#[test]
fn system_calls_that_lead_out_do_not_work_under_any_table() {
    for person in people() {
        check(&person, &[], ATTEMPTS, &[], 500);
    }
}

/// A set-user-ID program of the person's own gains nothing.
#[test]
fn a_program_that_would_change_the_user_does_not() {
    let Some(person) = Person::root() else { return };
    let program = person.work().join("id");
    std::fs::copy("/usr/bin/id", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(1), Some(1)).unwrap();
    let set_id: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o6755);
    std::fs::set_permissions(&program, set_id).unwrap();
    assert_eq!(
        Ran::of(&mut person.outside(&program))
            .ok()
            .matches("euid=1")
            .count(),
        1
    );
    let inside = person.sh(&[], "./id").ok();
    assert!(!inside.contains("euid="), "{inside}");
}

/// The machine code of the attempts reaches the kernel where no filter is in force: else they
/// would show nothing.
#[test]
fn the_attempts_under_the_i386_table_are_real() {
    let Some(person) = Person::new() else { return };
    let begin = ATTEMPTS.find("# i386:").unwrap();
    let end = ATTEMPTS.find("def killed").unwrap();
    let script = format!(
        "import mmap\n{}holds('getpid', lambda: gate(20, 0, 0) in (os.getpid(), -38))\n",
        &ATTEMPTS[begin..end]
    );
    let command = python(&script, &[]);
    let ran = Ran::of(person.outside(&command[0]).args(&command[1..]));
    crate::attempts::check_rows(crate::attempts::rows(&ran), 1);
}
