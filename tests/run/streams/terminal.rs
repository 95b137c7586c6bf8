//! The terminal of a command: a pseudo-terminal in the sandbox that mirrors the user's terminal.

use std::collections::BTreeSet;

use rustix::process::Signal;
use testkit::each_row;

use super::pseudo_terminal::{PseudoTerminal, compared};
use crate::fixture::Person;
use crate::processes;
use crate::support::{SOON, eventually};

/// Prints `ready`, then loops until a trap exits.
const WAIT: &str = "echo ready; while :; do sleep 0.05; done";

fn start(person: &Person, script: &str) -> PseudoTerminal {
    PseudoTerminal::start(&person.command(&[], &["sh", "-c", script]))
}

#[test]
fn the_terminal_size_and_its_changes_reach_the_command() {
    let Some(person) = Person::new() else { return };
    let script = format!("stty size; trap 'stty size; exit 3' WINCH; {WAIT}");
    let mut terminal = start(&person, &script);
    terminal.wait_for("40 120\nready");
    terminal.resize(31, 97);
    terminal.wait_for("31 97\n");
    assert_eq!(terminal.end().code(), Some(3));
}

#[test]
fn the_command_has_a_terminal_of_the_sandbox() {
    let Some(person) = Person::new() else { return };
    let mut terminal = start(
        &person,
        "tty; ls /dev/pts | tr '\\n' ' '; cat /dev/tty & sleep 0.1; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all",
    );
    terminal.wait_for("/dev/pts/0\n0 ptmx all\n");
    terminal.end();
}

#[test]
fn interrupt_keys_reach_only_the_command() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            (format!("trap 'echo caught; exit 5' INT; {WAIT}"), "\x03", 5),
            (
                format!("trap 'echo caught; exit 6' QUIT; {WAIT}"),
                "\x1c",
                6,
            ),
            ("echo ready; exec sleep 100".to_owned(), "\x03", 130),
        ],
        |(script, key, code)| {
            let mut terminal = start(&person, &script);
            terminal.wait_for("ready");
            terminal.keys(key);
            assert_eq!(terminal.end().code(), Some(code), "{}", terminal.shown());
        },
    );
}

#[test]
fn ctrl_d_ends_the_input_of_the_command() {
    let Some(person) = Person::new() else { return };
    let mut terminal = start(&person, "echo ready; cat; echo end");
    terminal.wait_for("ready");
    terminal.keys("one line\r\x04");
    terminal.wait_for("one line\none line\nend");
    assert_eq!(terminal.end().code(), Some(0));
}

/// The words with which a shell of this user runs a script in a sandbox.
fn words(person: &Person, script: &str) -> String {
    let run = person.command(&[], &["sh", "-c", script]);
    let words = [run.get_program()].into_iter().chain(run.get_args());
    // The shell already runs as the unprivileged user, so `setpriv` is left out.
    let words = words.skip_while(|word| *word != person.binary());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.display())).collect();
    words.join(" ")
}

#[test]
fn the_modes_that_a_pager_sets_are_kept_at_the_end_of_the_command() {
    let Some(person) = Person::new() else { return };
    let run = words(
        &person,
        "touch begun; until [ -e go ]; do sleep 0.05; done; echo text",
    );
    let pager = "until [ -e begun ]; do sleep 0.05; done; stty -icanon -echo </dev/tty; \
                 echo paging; cat; stty -a </dev/tty | grep -c -e -icanon";
    let mut shell = person.outside("sh");
    shell.args(["-c", &format!("{run} | {{ {pager}; }}")]);
    let mut terminal = PseudoTerminal::start(&shell);
    terminal.wait_for("paging\n");
    std::fs::write(person.work().join("go"), "").unwrap();
    // `cat` ends after the launcher, which has standard output too.
    terminal.wait_for("text\n1\n");
    terminal.end();
}

#[test]
fn a_stopped_command_continues_in_the_foreground() {
    let Some(person) = Person::new() else { return };
    let script = "stty -echo; echo ready; read -r line; echo \"got $line\"; exit 4";
    let mut shell = person.outside("bash");
    shell
        .args(["--norc", "--noprofile", "-i"])
        .env("PS1", "prompt> ");
    let mut terminal = PseudoTerminal::start(&shell);
    terminal.wait_for("prompt> ");
    terminal.keys(&format!("{}\r", words(&person, script)));
    terminal.wait_for("ready\n");
    eventually("the launcher sets raw mode", SOON, || terminal.is_raw());
    terminal.keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.keys("echo $((40 + 2)) between\r");
    terminal.wait_for("42 between\n");
    terminal.keys("fg\r");
    eventually("the command is in the foreground again", SOON, || {
        // The shell's line editor uses raw mode too, so raw mode alone does not show that the
        // command runs again.
        !terminal.is_at_prompt() && terminal.is_raw()
    });
    terminal.keys("hello\r");
    terminal.wait_for("got hello\n");
    eventually("the command has ended", SOON, || terminal.is_at_prompt());
    terminal.keys("echo code $?; exit\r");
    terminal.wait_for("code 4\n");
    terminal.end();
}

#[test]
fn only_streams_that_are_terminals_outside_are_terminals_inside() {
    let Some(person) = Person::new() else { return };
    let script = "exec 7>kinds; for stream in 0 1 2; do \
                  if [ -t $stream ]; then printf t >&7; else printf n >&7; fi; done";
    each_row(
        [
            ([true, true, true], "ttt"),
            ([true, false, false], "tnn"),
            ([true, true, false], "ttn"),
            ([true, false, true], "tnt"),
        ],
        |(streams, kinds)| {
            let command = person.command(&[], &["sh", "-c", script]);
            let mut terminal = PseudoTerminal::start_with(&command, streams);
            assert!(terminal.end().success(), "{}", terminal.shown());
            let said = std::fs::read_to_string(person.work().join("kinds")).unwrap();
            assert_eq!(said, kinds);
        },
    );
}

#[test]
fn tiocsti_and_tioclinux_fail_on_the_terminal_of_the_command() {
    let Some(person) = Person::new() else { return };
    let script = crate::attempts::python(
        "import fcntl, termios\n\
         SYS_ioctl, TIOCSTI, TIOCLINUX = 16, 0x5412, 0x541C\n\
         for fd in (0, 1, 2):\n    fails(f'TIOCSTI {fd}', lambda: fcntl.ioctl(fd, TIOCSTI, b'x'), errno.EPERM)\n\
         fails('TIOCLINUX', lambda: fcntl.ioctl(0, TIOCLINUX, b'\\x02'), errno.EPERM)\n\
         letter = ctypes.create_string_buffer(b'x')\n\
         for high in (1 << 32, 1 << 63, 0xFFFFFFFF << 32):\n    fails(f'TIOCSTI | {high:#x}', lambda: call(SYS_ioctl, ctypes.c_long(0), ctypes.c_ulong(TIOCSTI | high), letter), errno.EPERM)\n",
        &[],
    );
    let script: Vec<&str> = script.iter().map(String::as_str).collect();
    let mut terminal = PseudoTerminal::start(&person.command(&[], &script));
    terminal.wait_for("finished");
    let shown = terminal.shown();
    let rows: Vec<crate::attempts::Attempt> = shown
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    crate::attempts::check_rows(rows, 7);
    terminal.end();
}

#[test]
fn the_launcher_restores_the_terminal_modes_however_the_run_ends() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            // The command waits for `sleep`, and ends when `sleep` is killed.
            ("the command ends", "sleep 1000"),
            ("PID 1 is killed", "sandbox-pid1"),
            ("the forwarder is killed", "sandbox-forwarder"),
            ("the appliance is killed", "run-appliance"),
        ],
        |(_, killed)| {
            let mut terminal = start(
                &person,
                "stty raw -echo; printf ready; sleep 1000 & wait; exit 0",
            );
            terminal.wait_for("ready");
            assert!(terminal.is_raw());
            let launcher = terminal.child.id();
            let before = processes::descendants(launcher);
            processes::send(processes::below(launcher, killed), Signal::KILL);
            terminal.end();
            // A new terminal, whose modes no launcher has changed.
            let fresh = PseudoTerminal::start(
                std::process::Command::new("true")
                    .env("HOME", "/")
                    .current_dir("/"),
            );
            assert_eq!(compared(&terminal.modes()), compared(&fresh.modes()));
            let pids: BTreeSet<u32> = before;
            processes::end_within("the run has ended", &pids, SOON);
        },
    );
}
