//! The terminal of the operator who runs `scripts/sandbox exec`. The command gets a terminal of the
//! sandbox instead.

use std::process::Command;

use crate::fixture::Fixture;
use crate::pseudo_terminal::PseudoTerminal;
use crate::summary::can_run;
use crate::support::{SOON, eventually};

/// A program that leaves a process behind. That process reads whatever terminal it can reach, and
/// writes the text to a file of the sandbox.
const THIEF: &str = r#"
import os, select, sys, time
if os.fork():
    while not os.path.exists("/tmp/started"):
        time.sleep(0.01)
    sys.exit(7)
os.setsid()
found = [0, 1, 2]
try:
    found.append(os.open("/dev/tty", os.O_RDWR))
except OSError:
    pass
open("/tmp/started", "w").close()
until = time.monotonic() + 5
while time.monotonic() < until:
    for fd in list(found):
        try:
            if select.select([fd], [], [], 0.01)[0]:
                text = os.read(fd, 4096)
                open("/tmp/stolen", "ab").write(text)
        except OSError:
            found.remove(fd)
open("/tmp/stolen", "ab").write(b"\nended\n")
"#;

/// A shell of the operator, at its prompt.
fn shell(fixture: &Fixture) -> PseudoTerminal {
    let script = fixture.script(&[]);
    let mut shell = Command::new("bash");
    shell
        .args(["--norc", "--noprofile", "--noediting", "-i"])
        .envs(std::env::vars_os())
        .envs(
            script
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("SANDBOX", script.get_program())
        .env("PS1", "prompt> ")
        .current_dir("/");
    let terminal = fixture.host.run(|| PseudoTerminal::start(&shell));
    terminal.wait_for("prompt> ");
    terminal
}

#[test]
fn no_process_of_a_sandbox_reads_what_the_operator_types_after_an_exec() {
    if !can_run("no_process_of_a_sandbox_reads_what_the_operator_types_after_an_exec") {
        return;
    }
    let fixture = Fixture::start();
    for (name, streams) in [
        ("all", ""),
        ("output", "</dev/null"),
        ("none", "</dev/null 2>&1 | cat"),
    ] {
        let sandbox = fixture.up(name, &[]);
        fixture
            .exec(name, &format!("cat >/tmp/thief <<'END'\n{THIEF}END"))
            .ok();
        let mut terminal = shell(&fixture);
        let command = format!("\"$SANDBOX\" exec {name} -- python3 /tmp/thief {streams}");
        terminal.keys(&format!(
            "{command}; echo code-$((${{PIPESTATUS[0]}} + 1))\r"
        ));
        terminal.wait_for("\ncode-8\n");
        eventually("the shell is at its prompt", SOON, || {
            terminal.is_at_prompt()
        });
        for _ in 0..20 {
            terminal.keys("echo typed-$((40 + 2))\r");
        }
        terminal.wait_for("\ntyped-42\n");
        let read = || fixture.exec(name, "cat /tmp/stolen").stdout;
        eventually("the process in the sandbox has ended", SOON, || {
            read().contains("ended")
        });
        assert!(!read().contains("typed"), "{name}: {}", read());
        // The process that waits as the first one has no terminal either.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", sandbox.init)).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1;
        assert_eq!(fields.split_whitespace().nth(4), Some("0"), "{stat}");
        terminal.keys("exit\r");
        terminal.end();
    }
}

#[test]
fn a_command_of_exec_has_a_terminal_of_the_sandbox_with_job_control() {
    if !can_run("a_command_of_exec_has_a_terminal_of_the_sandbox_with_job_control") {
        return;
    }
    let fixture = Fixture::start();
    fixture.up("a", &[]);
    let mut terminal = shell(&fixture);
    let run = |script: &str| {
        terminal.keys(&format!(
            "\"$SANDBOX\" exec a -- sh -c '{script}'; echo code-$?\r"
        ))
    };
    run("tty; stty size; exit 5");
    terminal.wait_for("/dev/pts/0\n40 120\ncode-5\n");
    run("trap \"echo caught; exit 6\" INT; echo ready-$((1 + 1)); while :; do sleep 0.05; done");
    terminal.wait_for("ready-2\n");
    terminal.keys("\x03");
    terminal.wait_for("caught\ncode-6\n");
    run("echo ready-$((2 + 1)); read -r line; echo got $line; exit 4");
    terminal.wait_for("ready-3\n");
    eventually("raw mode is set", SOON, || terminal.is_raw());
    terminal.keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.keys("echo between-$((40 + 2))\r");
    terminal.wait_for("between-42\n");
    terminal.keys("fg\r");
    eventually("the command is in the foreground again", SOON, || {
        !terminal.is_at_prompt() && terminal.is_raw()
    });
    terminal.keys("hello\r");
    terminal.wait_for("got hello\n");
    // The streams of a pipeline stay pipes.
    terminal
        .keys("echo text | \"$SANDBOX\" exec a -- sh -c 'cat; tty; echo error >&2' | tr a-z A-Z\r");
    terminal.wait_for("error\n");
    terminal.wait_for("TEXT\nNOT A TTY\n");
    terminal.keys("\"$SANDBOX\" up b --while sh -c 'tty; exit 3'; echo code-$?\r");
    terminal.wait_for("/dev/pts/0\ncode-3\n");
    terminal.keys("exit\r");
    terminal.end();
}
