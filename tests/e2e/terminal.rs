//! The terminal of the operator who runs `scripts/sandbox exec`. The command gets a terminal of the
//! sandbox instead.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::Fixture;
use crate::pseudo_terminal::PseudoTerminal;
use crate::summary::can_run;
use crate::support::{SOON, eventually};

/// A program that leaves a process behind. Until `/tmp/stop` exists, that process reads whatever
/// terminal it can reach, and writes the text to a file of the sandbox.
const THIEF: &str = r#"
import os, select, sys, time
if os.fork():
    while not os.path.exists("/tmp/started"):
        time.sleep(0.01)
    sys.exit(7)
os.setsid()
found = []
for fd in (0, 1, 2):
    if os.isatty(fd):
        found.append(fd)
    else:
        os.close(fd)
try:
    found.append(os.open("/dev/tty", os.O_RDWR))
except OSError:
    pass
open("/tmp/started", "w").close()
until = time.monotonic() + 120
while not os.path.exists("/tmp/stop") and time.monotonic() < until:
    for fd in list(found):
        if select.select([fd], [], [], 0)[0]:
            try:
                text = os.read(fd, 4096)
            except OSError:
                text = b""
            open("/tmp/stolen", "ab").write(text)
            if not text:
                os.close(fd)
                found.remove(fd)
    time.sleep(0.01)
open("/tmp/stolen", "ab").write(b"\nended\n")
"#;

/// Waits until the shell is in the foreground of its terminal: until its process group is the one of
/// field 8 of `/proc/PID/stat` (proc(5)).
const IN_FOREGROUND: &str =
    "until read -r _ _ _ _ _ _ _ group _ </proc/$$/stat; [ $group = $$ ]; do sleep 0.05; done";

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
        let read = || fixture.exec(name, "cat /tmp/stolen || true").ok();
        assert!(!read().contains("ended"), "{name}: {}", read());
        fixture.exec(name, "touch /tmp/stop").ok();
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
        let script = script.replace("WAIT", IN_FOREGROUND);
        terminal.keys(&format!(
            "\"$SANDBOX\" exec a -- sh -c '{script}'; echo code-$?\r"
        ))
    };
    run("tty; stty size; exit 5");
    terminal.wait_for("/dev/pts/0\n40 120\ncode-5\n");
    run(
        "trap \"echo caught; exit 6\" INT; WAIT; echo ready-$((1 + 1)); while :; do sleep 0.05; done",
    );
    terminal.wait_for("ready-2\n");
    terminal.keys("\x03");
    terminal.wait_for("caught\ncode-6\n");
    run("WAIT; echo ready-$((2 + 1)); read -r line; echo got $line; exit 4");
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
    // In any order, since `error` does not pass through `tr`.
    for line in ["error\n", "TEXT\n", "NOT A TTY\n"] {
        terminal.wait_for(line);
    }
    terminal.keys("\"$SANDBOX\" up b --while sh -c 'tty; exit 3'; echo code-$?\r");
    terminal.wait_for("/dev/pts/0\ncode-3\n");
    terminal.keys("exit\r");
    terminal.end();
}

#[test]
fn a_background_job_of_exec_leaves_the_terminal_to_the_shell() {
    if !can_run("a_background_job_of_exec_leaves_the_terminal_to_the_shell") {
        return;
    }
    let fixture = Fixture::start();
    fixture.up("a", &[]);
    let mut terminal = shell(&fixture);
    let job = |script: &str, redirection: &str| {
        terminal.keys(&format!(
            "\"$SANDBOX\" exec a -- sh -c '{script}' {redirection} &\r"
        ));
    };
    for (number, redirection) in [(3, ""), (4, ">/dev/null"), (5, ">/dev/null 2>&1")] {
        let (begun, go) = (format!("/tmp/begun-{number}"), format!("/tmp/go-{number}"));
        let wait = format!("touch {begun}; until [ -e {go} ]; do sleep 0.05; done; exit {number}");
        job(&wait, redirection);
        eventually("the job runs", SOON, || {
            fixture.exec("a", &format!("test -e {begun}")).code == Some(0)
        });
        for typed in 0..3 {
            terminal.keys(&format!("echo typed-$(({number} * 10 + {typed}))\r"));
            terminal.wait_for(&format!("typed-{number}{typed}\n"));
        }
        fixture.exec("a", &format!("touch {go}")).ok();
        terminal.keys("wait $!; echo code-$?\r");
        terminal.wait_for(&format!("code-{number}\n"));
    }
    // `fg` sends no signal to a job that is running.
    job("read -r line; echo got $line; exit 6", "");
    terminal.keys("fg\r");
    eventually("the job is in the foreground", SOON, || {
        !terminal.is_at_prompt() && terminal.is_raw()
    });
    terminal.keys("hello\r");
    terminal.wait_for("got hello\n");
    eventually("the shell is at its prompt", SOON, || {
        terminal.is_at_prompt()
    });
    assert!(!terminal.is_raw());
    terminal.keys("echo code-$?\r");
    terminal.wait_for("code-6\n");
    terminal.keys("exit\r");
    terminal.end();
}

#[test]
fn signals_to_exec_reach_its_command_and_the_processes_of_its_group() {
    if !can_run("signals_to_exec_reach_its_command_and_the_processes_of_its_group") {
        return;
    }
    let fixture = Fixture::start();
    fixture.up("a", &[]);
    let signals = [
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("USR1", Signal::USR1),
        ("INT", Signal::INT),
    ];
    for (name, signal) in signals {
        // The shell runs the trap after the end of its child. The child says that it is ready: a
        // signal that comes before the shell has started it would not reach it.
        let script =
            format!("trap \"echo caught; exit 9\" {name}; sh -c \"echo ready; exec sleep 5353\"");
        let has_ended = |streams: &str| {
            let find = "grep -la '[5]353' /proc/[0-9]*/cmdline";
            let what = format!("{name}, {streams}: all processes have ended");
            eventually(&what, SOON, || fixture.exec("a", find).stdout.is_empty());
        };
        let mut exec = fixture.script(&["exec", "a", "--", "sh", "-c", &script]);
        exec.stdout(Stdio::piped());
        let mut child = fixture.host.run(|| exec.spawn().unwrap());
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "ready");
        send(child.id(), signal);
        assert_eq!(said.next().unwrap().unwrap(), "caught", "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
        has_ended("pipes");

        let script = format!("{IN_FOREGROUND}; {script}");
        let mut exec = fixture.script(&["exec", "a", "--", "sh", "-c", &script]);
        exec.env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir("/");
        let mut terminal = fixture.host.run(|| PseudoTerminal::start(&exec));
        terminal.wait_for("ready\n");
        send(terminal.child.id(), signal);
        terminal.wait_for("caught\n");
        assert_eq!(terminal.end().code(), Some(9), "{name}");
        has_ended("terminal");
    }
}

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}
