//! `approvals --watch` on a real terminal: a person answers each question by a key.

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use serde_json::json;

use super::Asking;
use crate::pseudo_terminal::{PseudoTerminal, compared};
use crate::support::{SANDBOX, SOON, eventually};

const BELL: char = '\x07';

/// Ends the line with the keys, after which the watch waits for an answer.
const PROMPT: &str = "q quit > ";

fn watch(asking: &Asking) -> PseudoTerminal {
    let socket = asking.proxy.path("api.sock");
    let socket = socket.to_str().unwrap();
    let command = ["approvals", "--watch", "--socket", socket];
    PseudoTerminal::start(&asking.proxy.own_command(&command))
}

/// Waits until the watch has asked for an answer this often.
#[track_caller]
fn asks(terminal: &PseudoTerminal, times: usize) {
    let what = format!("the watch asks {times} times");
    eventually(&what, SOON, || {
        terminal.shown().matches(PROMPT).count() >= times
    });
}

#[test]
fn a_person_answers_each_question_on_a_terminal_by_a_key() {
    let asking = Asking::start(|_| ());
    let subject = |host: &str| format!("{host}:{}", asking.port());
    let terminal = watch(&asking);
    // Typed before a question was shown, so it answers none.
    terminal.keys("y\n");
    let (host, denied) = ("one.example.org", "two.example.org");
    let first = asking.pending(host);
    asks(&terminal, 1);
    terminal.wait_for(&format!("subject    {}", subject(host)));
    assert!(terminal.shown().contains(BELL));
    assert_eq!(asking.pending(host), first, "still open");

    terminal.keys("e\n");
    asks(&terminal, 2);
    for part in [
        "asks       policy.unknown_hosts: the host is on no allowlist",
        &format!(
            "y          permits {SANDBOX} to reach exactly {}",
            subject(host)
        ),
        &format!("until the lease of {SANDBOX} ends"),
        &format!("CONNECT {} by {SANDBOX}: denied", subject(host)),
    ] {
        assert!(
            terminal.shown().contains(part),
            "{part}: {}",
            terminal.shown()
        );
    }
    terminal.keys("y\n");
    terminal.wait_for(&format!("approved: {} for {SANDBOX}", subject(host)));
    assert_eq!(asking.fetch(host), 200);

    asking.pending(denied);
    asks(&terminal, 3);
    terminal.keys("n use the mirror\n");
    terminal.wait_for(&format!("denied: {} for {SANDBOX}", subject(denied)));
    let (reply, _) = asking.connect(denied);
    reply.assert_denied(403, "approval_rejected", "Rejected by a person");
    assert!(reply.text().contains("use the mirror"), "{reply:?}");

    let leased = asking.pending("sub.one.example.org");
    asks(&terminal, 4);
    terminal.keys("l\n");
    terminal.wait_for(&format!("approved: {}", subject("sub.one.example.org")));
    let grant = asking.grant_of(&leased);
    let grants = asking.proxy.admin("GET", "/internal/grants", None).json();
    let grants = grants["grants"].as_array().unwrap();
    let given = grants.iter().find(|given| given["id"] == grant).unwrap();
    assert_eq!(given["scope"], "lease");

    let skipped = asking.pending("xn--bcher-kva.example.org");
    asks(&terminal, 5);
    terminal.keys("s\n");
    // A skipped question makes room for the next one.
    asking.pending("three.example.org");
    asks(&terminal, 6);
    terminal.wait_for(&format!("subject    {}", subject("three.example.org")));
    let open = asking.questions();
    assert!(
        open.iter().any(|question| question["id"] == skipped),
        "{open:?}"
    );
    assert_eq!(terminal.shown().matches(BELL).count(), 5);
}

#[test]
fn control_c_ends_the_watch_and_leaves_the_terminal_as_it_was() {
    let asking = Asking::start(|_| ());
    let mut terminal = watch(&asking);
    let before = compared(&terminal.modes());
    asking.pending("one.example.org");
    asks(&terminal, 1);
    terminal.keys("\x03");
    let ended = terminal.end();
    assert_eq!(ended.signal(), Some(Signal::INT.as_raw()), "{ended:?}");
    assert_eq!(compared(&terminal.modes()), before);
    assert_eq!(asking.questions()[0]["state"], json!("pending"));
}
