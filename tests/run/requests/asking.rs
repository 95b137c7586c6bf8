//! `--ask`: hosts that a person approves or denies in another terminal, while the command runs.

use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::fixture::Person;
use crate::support::{Ran, SOON, eventually};

const HOST: &str = "packages.example.org";
const DENIED: &str = "ads.example.org";

/// A user whose nameserver would find two hosts that are not allowed.
fn person() -> Option<Person> {
    let mut person = Person::new()?;
    let https = person.origin.https.to_string();
    for host in [HOST, DENIED] {
        person.setup.proxy["upstream"]["hosts"][host] = https.clone().into();
    }
    Some(person)
}

/// `approvals` in another terminal of the user.
fn approvals(person: &Person, arguments: &[&str]) -> Ran {
    let mut command = person.outside(person.binary());
    Ran::of(command.arg("approvals").args(arguments))
}

/// Waits for the question of a run about a host, and returns its id.
fn asked(person: &Person, run: &Child, host: &str) -> String {
    let container = format!("run-{}-", run.id());
    let subject = format!("{host}:443");
    let mut id = None;
    eventually("the question is open", SOON, || {
        // Fails while the appliance starts.
        let listed = approvals(person, &["--json"]);
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        let questions = listed["approvals"].as_array().cloned().unwrap_or_default();
        let ours = questions.iter().find(|question| {
            let of = question["container_id"].as_str().unwrap();
            question["subject"] == *subject && of.starts_with(&container)
        });
        id = ours.map(|question| question["id"].as_str().unwrap().to_owned());
        id.is_some()
    });
    id.unwrap()
}

fn end(mut run: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    run.stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    (run.wait().unwrap().code(), said)
}

fn start(person: &Person, flags: &[&str], script: &str) -> Child {
    let mut command = person.command(flags, &["sh", "-c", script]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_host_is_approved_in_a_second_terminal_listed_at_the_end_and_learned() {
    let Some(person) = person() else { return };
    let file = person.home().join("config/allowlist.yaml");
    person.directory("config");
    let script = format!(
        "until curl -sf https://{HOST}/zen; do sleep 0.1; done
         while [ $(curl -so /dev/null -w '%{{http_connect}}' https://{DENIED}/) != 403 ]; do sleep 0.1; done
         until curl -sv https://{DENIED}/ 2>&1 | grep -q Rejected; do sleep 0.1; done"
    );
    let run = start(
        &person,
        &["--ask", "--learn", file.to_str().unwrap()],
        &script,
    );
    let id = asked(&person, &run, HOST);
    let said = approvals(&person, &["approve", &id, "--lease"]).ok();
    assert!(
        said.starts_with(&format!("approved: {HOST}:443 for run-")),
        "{said}"
    );
    let id = asked(&person, &run, DENIED);
    approvals(&person, &["deny", &id, "--comment", "not needed"]).ok();
    let (code, said) = end(run);
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "unified-proxy: a person is asked about hosts that are not allowed: answer in another \
             terminal, with `unified-proxy approvals --watch`",
            "unified-proxy: decided by a person",
            &*format!("  {DENIED}       denied: not needed"),
            &*format!("  {HOST}  approved for the run   --allow {HOST}"),
        ]
    );
    let learned = fs::read_to_string(&file).unwrap();
    assert!(
        learned.ends_with(&format!("domains:\n  - \"{HOST}\"\n")),
        "{learned}"
    );

    // The file is a configuration by itself; without it, a later run denies the host.
    let mut check = person.outside(person.binary());
    Ran::of(
        check
            .arg("check")
            .arg("--config")
            .arg(file.parent().unwrap()),
    )
    .ok();
    let ran = person.sh(&[], &format!("curl -sf https://{HOST}/zen"));
    assert!(ran.stderr.contains(&format!("--allow {HOST}\n")), "{ran:?}");
}

#[test]
fn a_question_that_nobody_answers_is_listed_with_the_flag() {
    let Some(person) = person() else { return };
    let ran = person.sh(&["--ask"], &format!("curl -s https://{HOST}/zen; true"));
    let words = super::answers::summary(&ran.stderr);
    let flag = ["--allow", HOST, "(nobody", "answered)"];
    assert_eq!(
        words,
        [[&[HOST, "1", "time"][..], &flag[..]].concat()],
        "{ran:?}"
    );
    let quiet = person.sh(&["--ask", "--quiet"], "true");
    assert_eq!(quiet.stderr, "");
}

#[test]
fn nothing_that_is_approved_for_one_run_outlives_it() {
    let Some(person) = person() else { return };
    let run = start(
        &person,
        &["--ask"],
        &format!("until curl -sf https://{HOST}/zen; do sleep 0.1; done"),
    );
    let id = asked(&person, &run, HOST);
    // The appliance's state ends with the run, so it has nothing to keep the host in.
    let refused = approvals(&person, &["approve", &id, "--always"]);
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.stderr.contains("run --learn"), "{refused:?}");
    approvals(&person, &["approve", &id]).ok();
    assert_eq!(end(run).0, Some(0));
    let ran = person.sh(&["--ask"], &format!("curl -sf https://{HOST}/zen"));
    assert!(ran.stderr.contains("(nobody answered)"), "{ran:?}");
}

#[test]
fn a_sandboxed_command_reaches_no_admin_socket_and_cannot_answer() {
    let Some(person) = person() else { return };
    let script = format!(
        "curl -s https://{HOST}/zen >/dev/null
         unified-proxy approvals 2>&1; unified-proxy approvals grant x {HOST} 2>&1
         ls /tmp/unified-proxy-* 2>/dev/null; true"
    );
    let ran = person.sh(&["--ask", "--quiet"], &script);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{ran:?}");
    for line in lines {
        assert!(line.contains("no server of this user runs"), "{line}");
    }
}
