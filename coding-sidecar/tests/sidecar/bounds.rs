//! Clients that use too many resources: their cost is bounded, and other clients are served.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{STEP_TIMEOUT, Sidecar, processes, unique_sleep, until};

/// The crate's `CONNECTIONS_MAX`.
const CONNECTIONS: usize = 256;
/// The crate's `COMMANDS_MAX`.
const COMMANDS: usize = 32;

#[test]
fn a_thousand_connections_cost_little_and_do_not_block_other_clients() {
    let sidecar = Sidecar::start();
    sidecar.assert_serves();
    let before = sidecar.memory("VmRSS");
    let mut open: Vec<_> = (0..1000)
        .map(|number| {
            let mut socket = UnixStream::connect(sidecar.socket()).unwrap();
            // Some begin a head, some a body; none completes a request. Writing fails on a
            // connection that was closed meanwhile.
            let text = match number % 3 {
                0 => "",
                1 => "POST /bash HTTP/1.1\r\nhost",
                _ => "POST /write HTTP/1.1\r\nhost: s\r\ncontent-length: 1000\r\n\r\n{",
            };
            let _ = socket.write_all(text.as_bytes());
            socket
        })
        .collect();
    sidecar.assert_serves();
    assert_eq!(sidecar.bash("echo served").stdout, "served\n");
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{}/fd", sidecar.child.id()))
            .unwrap()
            .count()
    };
    until("the connections over the limit are closed", || {
        descriptors() < CONNECTIONS + 50
    });
    let grown = sidecar.memory("VmRSS").saturating_sub(before);
    assert!(grown < 8 * 1024, "memory grew by {grown} KiB");
    // The newest connection is still open.
    let last = open.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let waiting = last.read(&mut [0]).unwrap_err();
    assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn clients_that_connect_again_and_again_do_not_interrupt_a_request() {
    let variables = [
        ("SIDECAR_AUTH_TOKEN", "s3cret"),
        ("SIDECAR_REQUIRE_AUTH", "true"),
    ];
    let sidecar = Sidecar::with(&variables);
    let token = "authorization: Bearer s3cret\r\n";
    let mut idle = sidecar.connect();
    idle.request("/ls", token, "{}");
    assert_eq!(idle.response().status, 200);
    let mut sender = sidecar.connect();
    sender.send(&format!(
        "POST /ls HTTP/1.1\r\nhost: s\r\n{token}content-length: 2\r\n\r\n{{"
    ));
    // The response to this later request shows that the sidecar has read the head from `sender`.
    idle.request("/ls", token, "{}");
    assert_eq!(idle.response().status, 200);
    let others: Vec<_> = (0..4 * CONNECTIONS)
        .map(|_| {
            let mut socket = UnixStream::connect(sidecar.socket()).unwrap();
            let _ = socket.write_all(b"POST /ls HTTP/1.1\r\nhost: s\r\ncontent-length: 2\r\n\r\n");
            socket
        })
        .collect();
    sender.send("}");
    assert_eq!(sender.response().status, 200);
    idle.request("/ls", token, "{}");
    assert_eq!(idle.response().status, 200);
    drop(others);
}

#[test]
fn of_a_hundred_endless_commands_32_run_and_other_requests_are_served() {
    let sidecar = Sidecar::start();
    let mark = unique_sleep();
    let mut running = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        let mut client = sidecar.connect();
        let body = json!({ "command": format!("exec sleep {mark}") }).to_string();
        client.request("/bash", "", &body);
        let head = client.head();
        if head.starts_with("HTTP/1.1 200 ") {
            running.push(client);
        } else {
            assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
            assert!(
                head.to_ascii_lowercase().contains("retry-after: 1"),
                "{head}"
            );
            refused += 1;
        }
    }
    assert_eq!((running.len(), refused), (COMMANDS, 100 - COMMANDS));
    // Each command is one process with a supervisor; both have the mark in their arguments.
    until("all commands run", || {
        processes(&mark).len() == 2 * COMMANDS
    });
    sidecar.assert_serves();
    assert_eq!(sidecar.post("/ls", &json!({})).status, 200);
    drop(running);
    until("all commands have ended", || processes(&mark).is_empty());
    // A place is free slightly later, once the sidecar has reaped the supervisor of the command.
    until("a further command is accepted", || {
        sidecar.post("/bash", &json!({ "command": "true" })).status == 200
    });
}

#[test]
fn a_client_that_sends_without_end_is_cut_off() {
    let sidecar = Sidecar::start();
    sidecar.assert_serves();
    let before = sidecar.memory("VmRSS");
    let endless_head = "GET /health HTTP/1.1\r\nhost: s\r\nx: ";
    let endless_body = "POST /write HTTP/1.1\r\nhost: s\r\ntransfer-encoding: chunked\r\n\r\n";
    for beginning in [endless_head, endless_body] {
        let mut socket = UnixStream::connect(sidecar.socket()).unwrap();
        socket.set_write_timeout(Some(STEP_TIMEOUT)).unwrap();
        socket.write_all(beginning.as_bytes()).unwrap();
        let part = match beginning {
            head if head == endless_head => "x".repeat(16 * 1024),
            _ => format!("4000\r\n{}\r\n", " ".repeat(16 * 1024)),
        };
        let mut sent = 0;
        while socket.write_all(part.as_bytes()).is_ok() {
            sent += part.len();
            assert!(sent < 64 * 1024 * 1024, "{sent} bytes were taken");
        }
    }
    sidecar.assert_serves();
    let grown = sidecar.memory("VmRSS").saturating_sub(before);
    assert!(grown < 40 * 1024, "memory grew by {grown} KiB");
}

#[test]
fn bodies_and_heads_over_their_limits_are_refused() {
    let sidecar = Sidecar::start();
    let mut announced = sidecar.connect();
    announced.send("POST /write HTTP/1.1\r\nhost: s\r\ncontent-length: 16777217\r\n\r\n");
    let response = announced.response();
    assert_eq!(response.status, 413);
    let error = response.json()["error"].to_string();
    assert!(error.contains("longer than 16777216 bytes"), "{error}");
    let mut bash = sidecar.connect();
    bash.send("POST /bash HTTP/1.1\r\nhost: s\r\ncontent-length: 1048577\r\n\r\n");
    assert_eq!(bash.response().status, 413);
    let mut head = sidecar.connect();
    head.send(&format!(
        "GET /health HTTP/1.1\r\nhost: s\r\nx: {}\r\n\r\n",
        "x".repeat(40_000)
    ));
    assert_eq!(head.response().status, 431);
    // A body slightly below the limit is accepted.
    let mut largest = sidecar.connect();
    let content = "x".repeat(16 * 1024 * 1024 - 100);
    let response = largest.post("/write", &json!({ "path": "large", "content": content }));
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.json()["result"]["bytes"], content.len());
}

#[test]
fn bodies_share_a_bounded_memory() {
    let sidecar = Sidecar::start();
    // Six bodies of 16 MiB, each without its last byte. The budget holds four, so at least one is
    // refused.
    let senders: Vec<_> = (0..6)
        .map(|_| {
            let socket = sidecar.socket();
            thread::spawn(move || {
                let mut socket = UnixStream::connect(socket).unwrap();
                socket.set_write_timeout(Some(STEP_TIMEOUT)).unwrap();
                let head = "POST /write HTTP/1.1\r\nhost: s\r\ncontent-length: 16777216\r\n\r\n";
                socket.write_all(head.as_bytes()).unwrap();
                let sent = socket.write_all(&vec![b' '; 16 * 1024 * 1024 - 1]);
                (socket, sent.is_ok())
            })
        })
        .collect();
    let senders: Vec<_> = senders
        .into_iter()
        .map(|sender| sender.join().unwrap())
        .collect();
    let taken = senders.iter().filter(|(_, taken)| *taken).count();
    assert!((1..=5).contains(&taken), "{taken} bodies were taken");
    assert!(sidecar.memory("VmRSS") < 160 * 1024);
    // A small body fits into the budget once the other clients have closed their connections.
    drop(senders);
    until("a small body is accepted", || {
        sidecar.post("/ls", &json!({})).status == 200
    });
}

#[test]
fn a_command_whose_client_never_reads_stalls_and_is_then_ended() {
    let sidecar = Sidecar::start();
    sidecar.assert_serves();
    let before = sidecar.memory("VmRSS");
    let mark = unique_sleep();
    let mut client = sidecar.connect();
    client.begin(&format!("yes {mark}"));
    let begun = Instant::now();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(
        processes(&mark).len(),
        2,
        "the command and its supervisor wait for the client"
    );
    let grown = sidecar.memory("VmRSS").saturating_sub(before);
    assert!(grown < 4 * 1024, "memory grew by {grown} KiB");
    sidecar.assert_serves();
    // The client must accept a byte within 30 seconds.
    while !processes(&mark).is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the command still runs after 60 s"
        );
        thread::sleep(Duration::from_millis(200));
    }
    assert!(begun.elapsed() > Duration::from_secs(25));
}

#[test]
fn a_connection_that_sends_no_complete_head_is_closed() {
    let sidecar = Sidecar::start();
    let mut silent = UnixStream::connect(sidecar.socket()).unwrap();
    let mut slow = UnixStream::connect(sidecar.socket()).unwrap();
    slow.write_all(b"POST /bash HTTP/1.1\r\n").unwrap();
    for socket in [&mut silent, &mut slow] {
        socket
            .set_read_timeout(Some(Duration::from_secs(90)))
            .unwrap();
        socket.read_to_end(&mut Vec::new()).unwrap();
    }
    sidecar.assert_serves();
}

#[test]
fn a_body_that_does_not_arrive_is_refused_with_408() {
    let sidecar = Sidecar::start();
    let mut client = sidecar.connect();
    client.send("POST /bash HTTP/1.1\r\nhost: s\r\ncontent-length: 10\r\n\r\n{");
    // The time limit for a body equals the client's read timeout, so the first read may fail.
    let begun = Instant::now();
    let response = loop {
        match client.try_head() {
            Ok(head) => break head,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
}

#[test]
fn searches_that_keep_the_processor_busy_leave_threads_to_other_operations() {
    let sidecar = Sidecar::start();
    // Searching one line takes about a second, and searching the file far longer than the test. The
    // letters are random, since a repetitive line would be searched quickly.
    let mut state = 1_u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if state >> 31 == 0 { 'a' } else { 'b' }
    };
    let line: String = (0..60 * 1024).map(|_| letter()).chain(['\n']).collect();
    std::fs::write(sidecar.root().join("ab"), line.repeat(60)).unwrap();
    let body = json!({ "pattern": "a[ab]{3000}c", "path": "ab" }).to_string();
    let searches: Vec<_> = (0..8)
        .map(|_| {
            let mut client = sidecar.connect();
            client.request("/grep", "", &body);
            client
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    assert_eq!(sidecar.post("/ls", &json!({})).status, 200);
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(searches);
}

#[test]
fn file_operations_have_their_threads_when_the_users_process_limit_is_reached() {
    // A separate user, since the limit counts the threads of a user and does not apply to root.
    let user = 100_000 + std::process::id();
    let folder = tempfile::tempdir().unwrap();
    // A copy, since the folder of the binary may be open only to its owner.
    let binary = folder.path().join("coding-sidecar");
    std::fs::copy(env!("CARGO_BIN_EXE_coding-sidecar"), &binary).unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    if chown(folder.path(), Some(user), None).is_err() {
        println!("not run: only root can start processes of another user");
        return;
    }
    let as_user = || {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), "--clear-groups"]);
        // The process ends with the test, even if the test fails.
        command.args(["--pdeathsig=KILL", "--"]);
        command.stdin(Stdio::null());
        command
    };
    const PROCESSES: usize = 16;
    let child = as_user()
        .args(["prlimit", &format!("--nproc={PROCESSES}"), "--"])
        .arg(&binary)
        .env("SOCKET_PATH", folder.path().join("s.sock"))
        .env("WORKSPACE_ROOT", folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sidecar = Sidecar::adopt(folder, child, &[]);
    let mark = unique_sleep();
    let mut others: Vec<_> = (0..PROCESSES)
        .map(|_| as_user().args(["sleep", &mark]).spawn().unwrap())
        .collect();
    until("all processes run", || processes(&mark).len() == PROCESSES);
    // By default, tokio ends idle threads after 10 seconds; the second request is later.
    for idle in [0, 12] {
        thread::sleep(Duration::from_secs(idle));
        let response = sidecar.post("/ls", &json!({}));
        assert_eq!(response.status, 200, "{response:?}");
    }
    // A command needs a new process, so it fails.
    let response = sidecar.post("/bash", &json!({ "command": "true" }));
    assert_eq!(response.status, 400, "{response:?}");
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
