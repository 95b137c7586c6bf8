//! All processes that a command starts end with the command, however the command ends.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::each_row;

use crate::support::{Sidecar, processes, signal, unique_sleep, until};

/// Ways to start `sleep MARK` so that it outlives an ordinary shell.
const WAYS: [&str; 9] = [
    "sleep MARK &",
    "setsid sleep MARK &",
    "setsid -f sleep MARK",
    "nohup sleep MARK > /dev/null 2>&1 & disown",
    "( ( setsid sleep MARK & ) & ) ; sleep 0.05",
    "setsid sh -c 'setsid sh -c \"setsid sleep MARK & sleep MARK\" & sleep MARK' &",
    "trap '' TERM HUP INT; (trap '' TERM HUP; setsid sleep MARK) &",
    "set -m; sleep MARK & sleep MARK &",
    "setsid sh -c 'kill -STOP $$; sleep MARK' MARK & sleep 0.05; setsid sleep MARK &",
];

#[test]
fn the_end_of_a_command_ends_its_background_processes() {
    let sidecar = Sidecar::start();
    each_row(WAYS, |way| {
        let mark = unique_sleep();
        let run = sidecar.bash(&format!("{}\nexit 5", way.replace("MARK", &mark)));
        assert_eq!(
            run.last,
            json!({ "type": "done", "exitCode": 5 }),
            "{run:?}"
        );
        assert!(processes(&mark).is_empty());
    });
}

#[test]
fn a_command_that_takes_all_descriptors_from_its_supervisor_leaves_no_process() {
    let sidecar = Sidecar::start();
    let mark = unique_sleep();
    let run = sidecar.bash(&format!(
        "setsid sleep {mark} & prlimit --nofile=0 --pid $PPID"
    ));
    assert_eq!(run.last["type"], "error", "{run:?}");
    until("all processes have ended", || processes(&mark).is_empty());
}

#[test]
fn a_client_that_hangs_up_ends_the_command_with_all_descendants() {
    let sidecar = Sidecar::with(&[("TCP_HOST", "127.0.0.1"), ("TCP_PORT", "0")]);
    each_row(WAYS, |way| {
        for tcp in [false, true] {
            let mark = unique_sleep();
            let mut client = if tcp {
                sidecar.connect_tcp()
            } else {
                sidecar.connect()
            };
            client.begin(&format!(
                "{}\necho begun; sleep {mark}",
                way.replace("MARK", &mark)
            ));
            client.chunk().unwrap();
            until("the command runs", || !processes(&mark).is_empty());
            drop(client);
            until("all processes have ended", || processes(&mark).is_empty());
        }
    });
}

#[test]
fn a_client_that_shuts_down_its_sending_half_ends_the_command() {
    let sidecar = Sidecar::start();
    let mark = unique_sleep();
    let mut half = sidecar.connect();
    half.begin(&format!("echo begun; sleep {mark}"));
    half.chunk().unwrap();
    half.socket.get_ref().end_sending().unwrap();
    until("the command has ended", || processes(&mark).is_empty());
}

#[test]
fn a_client_that_hangs_up_after_pipelined_requests_ends_the_command() {
    let sidecar = Sidecar::start();
    let mark = unique_sleep();
    let mut pipelining = sidecar.connect();
    pipelining.begin(&format!("echo begun; sleep {mark}"));
    pipelining.chunk().unwrap();
    // More than the server's buffer holds.
    pipelining.send(&"GET /health HTTP/1.1\r\nhost: s\r\n\r\n".repeat(4000));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!processes(&mark).is_empty());
    drop(pipelining);
    until("the command has ended", || processes(&mark).is_empty());
}

#[test]
fn a_killed_sidecar_leaves_no_process() {
    each_row(WAYS, |way| {
        let mut sidecar = Sidecar::start();
        let mark = unique_sleep();
        let mut client = sidecar.connect();
        client.begin(&format!(
            "{}\necho begun; sleep {mark}",
            way.replace("MARK", &mark)
        ));
        client.chunk().unwrap();
        until("the command runs", || !processes(&mark).is_empty());
        sidecar.signal("KILL");
        sidecar.wait();
        // The arguments of the supervisor contain the mark too, so this also waits for its end.
        until("all processes have ended", || processes(&mark).is_empty());
    });
}

#[test]
fn a_command_that_kills_or_stops_its_supervisor_does_not_escape() {
    let sidecar = Sidecar::start();
    let killed = "error";
    let rows = [
        (
            "setsid sleep MARK & sleep 0.1; kill -KILL $PPID; sleep MARK",
            killed,
        ),
        (
            "setsid sleep MARK & sleep 0.1; kill -TERM $PPID; sleep MARK",
            killed,
        ),
        (
            "setsid sh -c 'kill -KILL $0; setsid sleep MARK & sleep MARK' $PPID & sleep MARK",
            killed,
        ),
        ("setsid sleep MARK & kill -STOP $PPID; sleep MARK", "done"),
    ];
    each_row(rows, |(command, last)| {
        let mark = unique_sleep();
        let command = command.replace("MARK", &mark);
        let run = sidecar.bash_request(&json!({ "command": command, "timeoutSeconds": 2 }));
        assert_eq!(run.last["type"], last, "{run:?}");
        until("all processes have ended", || processes(&mark).is_empty());
    });
    // Killing the leftover processes of a killed supervisor does not affect another command.
    let mark = unique_sleep();
    let mut other = sidecar.connect();
    other.begin(&format!("echo begun; setsid sleep {mark} & wait"));
    other.chunk().unwrap();
    until("the command runs", || !processes(&mark).is_empty());
    sidecar.bash("setsid sleep 600 & kill -KILL $PPID; sleep 600");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!processes(&mark).is_empty());
}

#[test]
fn a_command_that_stopped_its_supervisor_ends_when_the_sidecar_is_killed() {
    let mut sidecar = Sidecar::start();
    let mark = unique_sleep();
    let mut client = sidecar.connect();
    client.begin(&format!(
        "setsid sleep {mark} & kill -STOP $PPID; echo begun; sleep {mark}"
    ));
    client.chunk().unwrap();
    sidecar.signal("KILL");
    sidecar.wait();
    until("all processes have ended", || processes(&mark).is_empty());
}

#[test]
fn processes_that_fork_again_and_again_end_with_the_command() {
    let sidecar = Sidecar::start();
    let mark = unique_sleep();
    // Each generation leaves its session and its parent at once; only the latest is alive.
    let runner = sidecar.root().join("run");
    fs::write(&runner, "#!/bin/sh\nsetsid sh \"$0\" \"$1\" & exit\n").unwrap();
    for _ in 0..3 {
        let command = format!("sh ./run {mark}; sleep 0.3; echo begun");
        let run = sidecar.bash(&command);
        assert_eq!(run.stdout, "begun\n");
        assert_eq!(run.last, json!({ "type": "done", "exitCode": 0 }));
        assert!(processes(&mark).is_empty());
    }
}

#[test]
fn a_fork_bomb_ends_with_its_time_limit() {
    let sidecar = Sidecar::start();
    let mark = unique_sleep();
    fs::write(
        sidecar.root().join("bomb"),
        "#!/bin/sh\n[ $2 -gt 9 ] && exec sleep $1\nsetsid sh $0 $1 $(($2+1)) &\nsetsid sh $0 $1 $(($2+1)) &\nexec sleep $1\n",
    )
    .unwrap();
    let command = format!("sh ./bomb {mark} 0");
    let run = sidecar.bash_request(&json!({ "command": command, "timeoutSeconds": 2 }));
    assert_eq!(run.last["timedOut"], true, "{run:?}");
    assert!(processes(&mark).is_empty());
    sidecar.assert_serves();
}

#[test]
fn processes_that_fork_again_and_again_end_with_the_time_limit() {
    let sidecar = Sidecar::start();
    // Each generation leaves its session and its parent. Without a signal, the processes end after
    // 25 s.
    let lineage =
        "use POSIX; my $end = time + 25; while (time < $end) { fork and _exit(0); setsid }";
    let command = format!("for i in $(seq 20); do perl -e '{lineage}' & done; sleep 60");
    let begun = Instant::now();
    let run = sidecar.bash_request(&json!({ "command": command, "timeoutSeconds": 1 }));
    assert_eq!(run.last["type"], "done", "{run:?}");
    assert_eq!(run.last["timedOut"], true, "{run:?}");
    let took = begun.elapsed();
    println!("ended after {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    until("all processes have ended", || processes(lineage).is_empty());
    sidecar.assert_serves();
}

#[test]
fn daemons_that_the_entry_point_started_before_the_sidecar_are_not_killed() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("root")).unwrap();
    let mark = unique_sleep();
    let socket = folder.path().join("s.sock");
    // Like the entry point of a container: starts a daemon, then executes the sidecar.
    let mut child = std::process::Command::new("/bin/sh")
        .args([
            "-c",
            &format!(
                "sleep {mark} & exec {}",
                env!("CARGO_BIN_EXE_coding-sidecar")
            ),
        ])
        .env("SOCKET_PATH", &socket)
        .env("WORKSPACE_ROOT", folder.path().join("root"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the sidecar listens", || {
        UnixStream::connect(&socket).is_ok()
    });
    let run = crate::support::bash_at(&socket, "setsid sleep 600 & kill -KILL $PPID; sleep 600");
    assert_eq!(run.last["type"], "error");
    std::thread::sleep(Duration::from_millis(300));
    let daemon = processes(&mark);
    assert_eq!(daemon.len(), 1);
    signal(&daemon[0].to_string(), "KILL");
    // The sidecar reaps the daemon, although the entry point started the daemon.
    until("the daemon is reaped", || {
        !fs::exists(format!("/proc/{}", daemon[0])).unwrap()
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn as_process_1_the_sidecar_survives_a_command_that_kills_every_process() {
    let namespaced = || {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args([
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
        ]);
        unshare.arg("--kill-child");
        unshare
    };
    if !namespaced()
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("not run: unshare makes no PID namespace here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let mut child = namespaced()
        .arg(env!("CARGO_BIN_EXE_coding-sidecar"))
        .env("SOCKET_PATH", &socket)
        .env("WORKSPACE_ROOT", folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the sidecar listens", || {
        UnixStream::connect(&socket).is_ok()
    });
    let run = crate::support::bash_at(&socket, "setsid sleep 600 & kill -9 -1");
    assert_eq!(run.last["type"], "error", "{run:?}");
    let run = crate::support::bash_at(&socket, "cat /proc/[0-9]*/comm | grep -c sleep");
    assert_eq!(run.stdout, "0\n", "{run:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Listens at the path of the sidecar's socket, as a command can, with the sidecar's rights.
const IMPOSTOR: &str = r#"python3 -c 'import os, socket, time
os.rename("SOCKET", "SOCKET.away")
listener = socket.socket(socket.AF_UNIX)
listener.bind("SOCKET")
listener.listen()
time.sleep(MARK)'"#;

#[test]
fn a_command_that_replaces_the_socket_is_ended_and_the_socket_is_made_again() {
    let sidecar = Sidecar::start();
    let in_background = format!("setsid {IMPOSTOR} & sleep MARK");
    each_row(
        [IMPOSTOR, &in_background, "rm SOCKET; sleep MARK"],
        |command| {
            let mark = unique_sleep();
            let socket = sidecar.socket().display().to_string();
            let command = command.replace("MARK", &mark).replace("SOCKET", &socket);
            let mut client = sidecar.connect();
            client.begin(&command);
            sidecar.expect_line("the Unix socket was removed or replaced");
            sidecar.expect_line("listening at ");
            // The command ended before the socket was made.
            assert_eq!(processes(&mark), Vec::<u32>::new());
            assert_eq!(sidecar.bash("echo ok").stdout, "ok\n");
        },
    );
}

#[test]
fn an_impostor_of_a_socket_that_cannot_be_made_again_is_ended_too() {
    let sidecar = Sidecar::with(&[("TCP_HOST", "127.0.0.1"), ("TCP_PORT", "0")]);
    let socket = sidecar.socket().display().to_string();
    let mark = unique_sleep();
    let mut first = sidecar.connect();
    first.begin(&format!(
        "echo text >{socket}.file; mv {socket}.file {socket}"
    ));
    sidecar.expect_line("is not a socket");
    let command = IMPOSTOR.replace("MARK", &mark).replace("SOCKET", &socket);
    let body = json!({ "command": command }).to_string();
    let request = format!(
        "POST /bash HTTP/1.1\r\nhost: s\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // The sidecar may end a command before it has replaced the file.
    let mut clients = Vec::new();
    until("the socket is made again", || {
        let mut client = TcpStream::connect(sidecar.tcp.unwrap()).unwrap();
        let _ = client.write_all(request.as_bytes());
        clients.push(client);
        let log = sidecar.log();
        log.iter().any(|line| line.contains("listening at "))
    });
    drop(clients);
    until("the commands have ended", || processes(&mark).is_empty());
    until("the sidecar listens", || {
        UnixStream::connect(&socket).is_ok()
    });
    sidecar.assert_serves();
}
