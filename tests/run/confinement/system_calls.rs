//! System calls through each system call table of the machine (x86-64, x32 and i386), and the
//! capabilities and limits of a command.

use super::people;
use crate::attempts::{check, python};
use crate::fixture::Person;
use crate::support::Ran;

const ATTEMPTS: &str = include_str!("system_calls.py");

#[test]
fn system_calls_that_could_escape_fail_through_every_system_call_table() {
    for person in people() {
        check(&person, &[], ATTEMPTS, &[], 500);
    }
}

#[test]
fn a_set_user_id_program_does_not_change_the_user() {
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

/// Checks that, without a filter, the machine code of the attempts makes a system call, or gets
/// ENOSYS from a kernel without the i386 table. Otherwise the attempts would prove nothing.
#[test]
fn the_i386_machine_code_of_the_attempts_works_outside() {
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
