//! Pipes and files as the streams of a command, and its arguments, environment and umask.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use testkit::each_row;

use crate::fixture::Person;
use crate::support::Ran;

const LARGE: usize = 10 << 20;

/// Test data with every byte value, in an order with a long period.
fn bytes() -> Vec<u8> {
    (0..LARGE).map(|at| ((at * 31) ^ (at >> 9)) as u8).collect()
}

#[test]
fn ten_megabytes_pass_through_pipes_unchanged() {
    let Some(person) = Person::new() else { return };
    let mut child = person.spawn(&[], &["sh", "-c", "cat; echo done >&2"]);
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes();
    let writing = std::thread::spawn(move || stdin.write_all(&bytes()).unwrap());
    let mut received = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut received)
        .unwrap();
    writing.join().unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(received == sent, "{} of {LARGE} bytes", received.len());
    assert_eq!(said, "done\n");
}

#[test]
fn files_can_be_the_streams_of_a_command() {
    let Some(person) = Person::new() else { return };
    let (from, to) = (person.base().join("from"), person.base().join("to"));
    fs::write(&from, bytes()).unwrap();
    let status = person
        .command(&[], &["sh", "-c", "cat; echo end >&2"])
        .stdin(File::open(&from).unwrap())
        .stdout(File::create(&to).unwrap())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(fs::read(&to).unwrap() == bytes());
}

/// The shell of each row opens the files. The lines of both streams are in their order where the
/// streams are one file.
#[test]
fn no_line_is_lost_and_the_order_is_kept_in_a_file_that_is_both_output_streams() {
    let Some(person) = Person::new() else { return };
    let script = "i=0; while [ $i -lt 300 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done";
    let run = person.command(&["--quiet"], &["sh", "-c", script]);
    let lines: Vec<String> = (0..300)
        .flat_map(|i| [format!("out{i}"), format!("err{i}")])
        .collect();
    let file = person.base().join("both");
    each_row(
        [
            ("\"$@\" >\"$F\" 2>&1", vec![]),
            ("\"$@\" >>\"$F\" 2>&1", vec![]),
            ("\"$@\" 2>\"$F\" >&2", vec![]),
            ("\"$@\" >\"$F\" 2>\"$F\"", vec![]),
            ("\"$@\" 2>&1 | cat >\"$F\"", vec![]),
            (
                "{ echo first; \"$@\"; echo last; } >\"$F\" 2>&1",
                vec!["first", "last"],
            ),
        ],
        |(redirection, around)| {
            let _ = fs::remove_file(&file);
            let mut shell = Command::new("sh");
            shell
                .args(["-c", redirection, "sh"])
                .arg(run.get_program())
                .args(run.get_args());
            let variables = run
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?)));
            shell.env_clear().envs(variables).env("F", &file);
            let status = shell
                .current_dir(person.work())
                .stdin(Stdio::null())
                .status();
            assert!(status.unwrap().success());
            let written = fs::read_to_string(&file).unwrap();
            let written: Vec<&str> = written
                .lines()
                .filter(|line| !around.contains(line))
                .collect();
            assert!(written == lines, "{redirection}: {} lines", written.len());
        },
    );
}

#[test]
fn a_closed_output_pipe_ends_the_command() {
    let Some(person) = Person::new() else { return };
    let mut child = person.spawn(&[], &["yes"]);
    let mut first = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"y\ny\n");
    // 141: SIGPIPE killed `yes`. 1: `yes` inherited the signal as ignored, and a write failed with
    // EPIPE.
    let code = child.wait().unwrap().code().unwrap();
    assert!(code == 141 || code == 1, "{code}");
}

#[test]
fn arguments_and_variables_keep_every_byte() {
    let Some(person) = Person::new() else { return };
    let odd = OsStr::from_bytes(b"a\xff\xfe \n'\"$HOME\\\t\x01");
    let print = "printf %s \"$1\" | od -An -tx1 | tr -d ' \\n'; echo; printf %s \"$ODD\" | od -An -tx1 | tr -d ' \\n'";
    let mut command = person.command(&[], &["sh", "-c", print, "sh"]);
    let ran = Ran::of(command.arg(odd).arg("--").arg("").env("ODD", odd));
    let hex: String = odd
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(ran.ok(), format!("{hex}\n{hex}"));
}

#[test]
fn an_argument_of_100_kilobytes_and_a_thousand_arguments_arrive() {
    let Some(person) = Person::new() else { return };
    let long = "x".repeat(100_000);
    let mut command = person.command(&[], &["sh", "-c", "echo ${#1} $#", "sh", &long]);
    let ran = Ran::of(command.args((0..999).map(|number| number.to_string())));
    assert_eq!(ran.ok(), "100000 1000\n");
}

#[test]
fn background_processes_that_hold_the_streams_do_not_delay_the_end_of_the_run() {
    let Some(person) = Person::new() else { return };
    let began = std::time::Instant::now();
    let ran = person.sh(
        &[],
        "sleep 1000 & setsid sleep 1000 & echo out; echo err >&2",
    );
    assert!(
        began.elapsed() < crate::support::SOON,
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("out\n", "err\n")
    );
}

#[test]
fn a_closed_stream_is_dev_null_for_the_command_and_the_umask_is_passed_on() {
    let Some(person) = Person::new() else { return };
    let run = person.command(&[], &["sh", "-c", "umask; cat; echo err >&2; exit 3"]);
    each_row(
        [
            ("umask 027; exec \"$@\" <&-", "0027\n", "err\n"),
            ("exec \"$@\" >&-", "", "err\n"),
            ("umask 077; exec \"$@\" 2>&-", "0077\n", ""),
        ],
        |(script, out, err)| {
            let mut outer = Command::new("sh");
            outer
                .args(["-c", script, "sh"])
                .arg(run.get_program())
                .args(run.get_args());
            outer.env_clear().envs(
                run.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
            let ran = Ran::of(outer.current_dir(person.work()).stdin(Stdio::null()));
            assert_eq!(
                (ran.code, &*ran.stdout, &*ran.stderr),
                (Some(3), out, err),
                "{ran:?}"
            );
        },
    );
}
