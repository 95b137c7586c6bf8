//! Output and end of a command, with and without reaching its time limit.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::each_row;

use crate::support::{Sidecar, processes, unique_sleep, until};

#[test]
fn output_and_exit_codes_are_those_of_the_command() {
    let sidecar = Sidecar::start();
    // Command, stdout, stderr, exit code.
    let rows = [
        ("true", "", "", 0),
        ("false", "", "", 1),
        ("exit 255", "", "", 255),
        ("echo out; echo err >&2", "out\n", "err\n", 0),
        ("printf 'no newline'", "no newline", "", 0),
        ("kill -9 $$", "", "", 137),
        ("kill -TERM $$", "", "", 143),
        ("sh -c 'kill -SEGV $$'", "", "", 139),
        ("cat", "", "", 0),
        (
            "[ -t 0 ] || [ -e /dev/tty -a -w /dev/tty ] && : < /dev/tty",
            "",
            "",
            1,
        ),
        ("printf '\\303\\251\\377'", "é\u{fffd}", "", 0),
        ("printf '\\000\\033'", "\0\u{1b}", "", 0),
        ("[[ a < b ]] && echo bash", "bash\n", "", 0),
        ("", "", "", 0),
        ("exec >&- 2>&-; sleep 0.2; exit 3", "", "", 3),
        ("yes | head -1", "y\n", "", 0),
    ];
    each_row(rows, |(command, stdout, stderr, code)| {
        let run = sidecar.bash(command);
        assert_eq!(run.stdout, stdout);
        if code != 139 && !command.contains("/dev/tty") {
            assert_eq!(run.stderr, stderr);
        }
        assert_eq!(run.last, json!({ "type": "done", "exitCode": code }));
    });
    let missing = sidecar.bash("no-such-program");
    assert_eq!(missing.last["exitCode"], 127);
    assert!(missing.stderr.contains("no-such-program"), "{missing:?}");
    let broken = sidecar.bash("if");
    assert_eq!(broken.last["exitCode"], 2, "{broken:?}");
}

#[test]
fn a_command_begins_in_the_root_with_the_sidecars_environment_except_the_token() {
    let sidecar = Sidecar::with(&[("COLOUR", "green"), ("SIDECAR_AUTH_TOKEN", "hush")]);
    let run =
        sidecar.bash("pwd; echo $COLOUR; echo \"[$SIDECAR_AUTH_TOKEN]\"; ls -l /proc/self/fd | grep -c -e socket -e eventpoll -e pidfd");
    let root = sidecar.root().canonicalize().unwrap();
    // The command inherits no descriptor of the sidecar or the supervisor.
    assert_eq!(run.stdout, format!("{}\ngreen\n[]\n0\n", root.display()));
}

#[test]
fn a_response_is_ndjson_and_deltas_come_before_the_end() {
    let sidecar = Sidecar::start();
    let mut client = sidecar.connect();
    let body = json!({ "command": "echo one; until [ -e go ]; do sleep 0.01; done; echo two >&2" });
    client.request("/bash", "", &body.to_string());
    let head = client.head().to_ascii_lowercase();
    assert!(
        head.contains("content-type: application/x-ndjson"),
        "{head}"
    );
    let first = client.chunk().unwrap();
    assert_eq!(
        first,
        b"{\"type\":\"delta\",\"data\":\"one\\n\",\"stream\":\"stdout\"}\n"
    );
    std::fs::write(sidecar.root().join("go"), "").unwrap();
    let second = client.chunk().unwrap();
    assert_eq!(
        second,
        b"{\"type\":\"delta\",\"data\":\"two\\n\",\"stream\":\"stderr\"}\n"
    );
    assert_eq!(
        client.chunk().unwrap(),
        b"{\"type\":\"done\",\"exitCode\":0}\n"
    );
    assert_eq!(client.chunk().unwrap(), b"");
    // The connection serves further requests.
    assert_eq!(client.post("/ls", &json!({})).status, 200);
}

#[test]
fn the_longest_command_runs_and_a_longer_one_is_refused() {
    let sidecar = Sidecar::start();
    let of = |bytes: usize| format!(": {}", "x".repeat(bytes - 2));
    assert_eq!(sidecar.bash(&of(131_071)).last["exitCode"], 0);
    let response = sidecar.post("/bash", &json!({ "command": of(131_072) }));
    assert_eq!(response.status, 400);
    let error = response.json()["error"].to_string();
    assert!(
        error.contains("131072 bytes long, the limit is 131071"),
        "{error}"
    );
}

#[test]
fn the_time_limit_ends_the_command_and_its_output_arrives() {
    let sidecar = Sidecar::start();
    let rows = [
        "echo begun; sleep MARK",
        "echo begun; setsid sleep MARK & wait",
        "trap '' TERM INT HUP; echo begun; while :; do sleep MARK; done",
        "echo begun; nohup sleep MARK < /dev/null & disown; sleep MARK",
        "echo begun; (setsid sh -c 'setsid sleep MARK & sleep MARK' &) ; sleep MARK",
    ];
    each_row(rows, |command| {
        let mark = unique_sleep();
        let begun = Instant::now();
        let command = command.replace("MARK", &mark);
        let run = sidecar.bash_request(&json!({ "command": command, "timeoutSeconds": 0.7 }));
        assert_eq!(
            run.last,
            json!({ "type": "done", "exitCode": 137, "timedOut": true })
        );
        assert_eq!(run.stdout, "begun\n");
        assert!(begun.elapsed() < Duration::from_secs(10));
        // The last line is sent after all processes of the command have ended.
        assert!(processes(&mark).is_empty());
    });
}

#[test]
fn a_command_fails_if_the_root_was_removed() {
    let sidecar = Sidecar::start();
    std::fs::remove_dir(sidecar.root()).unwrap();
    let response = sidecar.post("/bash", &json!({ "command": "true" }));
    assert_eq!(response.status, 400, "{response:?}");
    assert!(
        response.json()["error"]
            .to_string()
            .contains("cannot start the command")
    );
    sidecar.assert_serves();
}

#[test]
fn output_waits_for_the_client_and_nothing_is_lost() {
    let sidecar = Sidecar::start();
    let mut client = sidecar.connect();
    // More output than all buffers between the command and its client hold.
    client.begin("seq 1 400000; touch written");
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        !sidecar.root().join("written").exists(),
        "the command ran ahead of its client"
    );
    let mut body = Vec::new();
    while let chunk = client.chunk().unwrap()
        && !chunk.is_empty()
    {
        body.extend(chunk);
    }
    let mut stdout = String::new();
    let mut last = serde_json::Value::Null;
    for line in body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        last = serde_json::from_slice(line).unwrap();
        stdout.push_str(last["data"].as_str().unwrap_or_default());
    }
    assert_eq!(last["exitCode"], 0);
    let numbers: Vec<u32> = stdout.lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.into_iter().eq(1..=400_000));
    until("the file is written", || {
        sidecar.root().join("written").exists()
    });
}
