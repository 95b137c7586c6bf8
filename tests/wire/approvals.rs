//! Operators give, list and end grants with the command line, on one server or on all.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use crate::support::{Origin, Proxy, Ran, SANDBOX, SOON, Setup, eventually};

/// Runs `approvals` against one proxy.
fn approvals(proxy: &Proxy, arguments: &[&str]) -> Ran {
    let socket = proxy.path("api.sock");
    let socket = ["--socket", socket.to_str().unwrap()];
    proxy.cli(&[&["approvals"], arguments, &socket].concat())
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_grant_is_given_listed_revoked_and_audited_with_who_did_it() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let host = "packages.example.org";
    let subject = format!("{host}:443");
    let said = approvals(&proxy, &["grant", SANDBOX, host]).ok();
    assert!(
        said.starts_with(&format!("granted {subject} to {SANDBOX} until 20")),
        "{said}"
    );
    let leased = [
        "grant",
        SANDBOX,
        "api.example.org:8443",
        "--lease",
        "--json",
    ];
    let leased = parsed(&approvals(&proxy, &leased).ok());
    assert_eq!(leased["subject"], "api.example.org:8443");
    let list = approvals(&proxy, &["grants"]).ok();
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 3, "{list}");
    assert_eq!(
        rows[0],
        [
            "ID",
            "KIND",
            "CONTAINER",
            "SCOPE",
            "LEFT",
            "LEVEL",
            "BY",
            "SUBJECT"
        ]
    );
    assert_eq!(rows[1][1..5], ["host", SANDBOX, "lease", "-"]);
    assert_eq!(rows[2][1..4], ["host", SANDBOX, "for"]);
    assert!(
        leased["id"].as_str().unwrap().starts_with(rows[1][0]),
        "{list}"
    );

    let act = json!({ "method": "operator/grant", "path": subject, "reason": "for 600s" });
    let line = proxy.audited(act);
    assert_eq!(line["container_id"], SANDBOX);
    let by = line["rule"].as_str().unwrap();
    let uid = rustix::process::getuid().as_raw();
    assert!(by.starts_with(&format!("operator: uid {uid}")), "{by}");

    let revoked = approvals(&proxy, &["revoke", rows[1][0]]).ok();
    assert_eq!(
        revoked,
        format!("revoked: api.example.org:8443 for {SANDBOX}\n")
    );
    let act = json!({ "method": "operator/revoke", "path": "api.example.org:8443" });
    proxy.audited(act);
    let grants = parsed(&approvals(&proxy, &["grants", "--json"]).ok());
    assert_eq!(grants["grants"].as_array().unwrap().len(), 1);
    // The ledger survives a restart.
    let mut proxy = proxy;
    proxy.crash_and_restart();
    assert_eq!(
        parsed(&approvals(&proxy, &["grants", "--json"]).ok()),
        grants
    );
}

#[test]
fn what_cannot_be_decided_or_granted_exits_64_with_the_reason() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let none = "there is no question whose id begins with 0a1b";
    each_row(
        [
            (&["show", "0a1b"][..], none),
            (&["approve", "0a1b"], none),
            (&["deny", "0a1b"], none),
            (&["forget", "0a1b"], none),
            (
                &["revoke", "0a1b"],
                "there is no grant whose id begins with 0a1b",
            ),
            (
                &["grant", "nope", "a.example.org"],
                "no container nope is registered",
            ),
            (
                &["grant", SANDBOX, "169.254.169.254"],
                "only a public host name",
            ),
            (
                &["grant", SANDBOX, "a.example.org", "--for", "25h"],
                "a time is from 1s to 24h",
            ),
        ],
        |(arguments, reason)| {
            let ran = approvals(&proxy, arguments);
            assert_eq!(ran.code, Some(64), "{arguments:?}: {ran:?}");
            assert!(ran.stderr.contains(reason), "{arguments:?}: {ran:?}");
        },
    );
    assert_eq!(
        approvals(&proxy, &[]).ok(),
        "no question waits for a decision\n"
    );
    assert_eq!(approvals(&proxy, &["--json"]).ok(), "{\"approvals\":[]}\n");
    assert_eq!(approvals(&proxy, &["grants"]).ok(), "there is no grant\n");
    let nobody = ["approvals", "--socket", "/nonexistent/api.sock"];
    assert_eq!(proxy.cli(&nobody).code, Some(69));
}

#[test]
fn without_a_socket_the_configured_server_and_each_run_of_the_user_are_asked() {
    let origin = Origin::start();
    let [configured, of_run] = [Proxy::start(&origin), Proxy::start(&origin)];
    of_run.register("127.0.0.9", "inner");
    // The place of a run whose state is below the user's home directory.
    let home = TempDir::new().unwrap();
    let runs = home.path().join(".local/state/unified-proxy/running");
    let mut private = std::fs::DirBuilder::new();
    private
        .recursive(true)
        .mode(0o700)
        .create(runs.join("run-a"))
        .unwrap();
    symlink(of_run.path("api.sock"), runs.join("run-a/api.sock")).unwrap();
    // A killed run leaves a socket that nobody listens on.
    std::fs::create_dir(runs.join("run-b")).unwrap();
    drop(UnixListener::bind(runs.join("run-b/api.sock")).unwrap());
    let ask = |arguments: &[&str]| {
        let mut command = configured.own_command(&[&["approvals"], arguments].concat());
        Ran::of(command.env("HOME", home.path()).current_dir(home.path()))
    };
    let first =
        parsed(&approvals(&configured, &["grant", SANDBOX, "a.example.org", "--json"]).ok());
    // Only the run has this container.
    let second = parsed(&ask(&["grant", "inner", "b.example.org", "--json"]).ok());
    let ids = || {
        let grants = parsed(&ask(&["grants", "--json"]).ok());
        let grants = grants["grants"].as_array().unwrap().clone();
        grants
            .into_iter()
            .map(|grant| grant["id"].clone())
            .collect::<Vec<_>>()
    };
    let all = ids();
    assert!(
        [&first, &second]
            .iter()
            .all(|grant| all.contains(&grant["id"])),
        "{all:?}"
    );
    ask(&["revoke", second["id"].as_str().unwrap()]).ok();
    let all = ids();
    assert!(
        all.contains(&first["id"]) && !all.contains(&second["id"]),
        "{all:?}"
    );
    let both = ask(&["grant", SANDBOX, "c.example.org"]);
    assert_eq!(both.code, Some(64), "{both:?}");
    assert!(
        both.stderr.contains("several servers have a container"),
        "{both:?}"
    );

    // A directory that other users can use is not one of this user's runs.
    std::fs::set_permissions(&runs, Permissions::from_mode(0o755)).unwrap();
    let ran = ask(&["grant", "inner", "b.example.org"]);
    assert_eq!(ran.code, Some(64), "{ran:?}");
}

#[test]
fn a_question_is_shown_and_decided_on_the_command_line_and_each_act_is_audited() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.policy = Some(json!({ "version": 1, "policy": { "unknown_hosts": "ask" } }));
    let proxy = setup.start();
    let asked = |host: &str| {
        let (reply, _) = proxy.connect(&format!("{host}:443"));
        reply.assert_denied(403, "approval_pending", "Waiting for approval ");
        reply.json()["approval"].as_str().unwrap().to_owned()
    };
    // A watch prints each question, and each decision about it.
    let socket = proxy.path("api.sock");
    let watch = [
        "approvals",
        "--watch",
        "--json",
        "--socket",
        socket.to_str().unwrap(),
    ];
    let mut watch = proxy
        .own_command(&watch)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut seen = || parsed(&lines.next().unwrap().unwrap());
    let first = asked("one.example.org");
    assert_eq!(asked("one.example.org"), first);
    let question = seen();
    assert_eq!(
        (&question["id"], &question["state"]),
        (&json!(first), &json!("pending"))
    );
    let list = approvals(&proxy, &[]).ok();
    let row: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        (row[0], row[1], row[2]),
        (&first[..8], "host", SANDBOX),
        "{list}"
    );
    assert_eq!(row[5], "one.example.org:443", "{list}");
    let details = approvals(&proxy, &["show", &first[..6]]).ok();
    assert!(details.contains("asked      2 times"), "{details}");
    let done = approvals(
        &proxy,
        &["approve", &first[..6], "--for", "1h", "--comment", "mirror"],
    );
    assert_eq!(
        done.ok(),
        format!("approved: one.example.org:443 for {SANDBOX}\n")
    );
    assert_eq!(seen()["state"], "approved");
    let again = approvals(&proxy, &["deny", &first]);
    assert_eq!(again.code, Some(64), "{again:?}");
    assert!(
        again.stderr.contains("has approved the question already"),
        "{again:?}"
    );

    let second = asked("two.example.org");
    assert_eq!(seen()["id"], second);
    approvals(
        &proxy,
        &["deny", &second[..8], "--comment", "use one.example.org"],
    )
    .ok();
    let (reply, _) = proxy.connect("two.example.org:443");
    let words = format!("Rejected by a person (approval {second}): use one.example.org");
    reply.assert_denied(403, "approval_rejected", &words);
    approvals(&proxy, &["forget", &second]).ok();
    assert_ne!(asked("two.example.org"), second);

    let act = json!({ "method": "operator/approve", "approval": first });
    let line = proxy.audited(act);
    assert_eq!(line["reason"], "for 3600s: mirror");
    assert_eq!(
        (&line["path"], &line["container_id"]),
        (&json!("one.example.org:443"), &json!(SANDBOX))
    );
    assert!(line["waited_ms"].is_u64(), "{line}");
    let act = json!({ "method": "operator/deny", "approval": second });
    assert_eq!(proxy.audited(act)["reason"], "use one.example.org");
    proxy.audited(json!({ "method": "operator/forget", "approval": second }));
    for (outcome, count) in [("approved", 1.0), ("denied", 1.0)] {
        let labels = ["kind=\"host\"", &format!("outcome=\"{outcome}\"")];
        eventually("the decision is counted", SOON, || {
            proxy.metric("proxy_approvals_total", &labels) == count
        });
    }
    let pending = || proxy.metric("proxy_approvals_pending", &["kind=\"host\""]);
    eventually("one question is open", SOON, || pending() == 1.0);
    watch.kill().unwrap();
    watch.wait().unwrap();
}
