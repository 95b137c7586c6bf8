//! `--server`: runs that register at a running server instead of starting an appliance.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::fixture::{NOBODY, Person, is_root};
use crate::processes;
use crate::support::{Origin, Proxy, SOON, Setup, eventually};

/// Starts a server whose admin API the user may call.
fn server(person: &Person, origin: &Origin) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.containers = Vec::new();
    setup.proxy["admin_uids"] = json!([NOBODY]);
    setup.proxy["admin_mode"] = "0666".into();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(setup.dir(), mode).unwrap();
    assert!(is_root() || person.user == crate::fixture::User::Unprivileged);
    setup.start()
}

fn socket(proxy: &Proxy) -> PathBuf {
    proxy.path("api.sock")
}

fn containers(proxy: &Proxy) -> Vec<Value> {
    let reply = proxy.admin("GET", "/internal/containers", None);
    let listed: Value = serde_json::from_str(&reply.text()).unwrap();
    listed["containers"].as_array().unwrap().clone()
}

/// Seconds until a lease ends.
fn left(container: &Value) -> f64 {
    let end = container["expires_at"].as_str().unwrap();
    let end = OffsetDateTime::parse(end, &Rfc3339).unwrap();
    (end - OffsetDateTime::now_utc()).as_seconds_f64()
}

/// Starts a run with `--server` whose command waits until its input ends.
fn wait_at(person: &Person, proxy: &Proxy) -> Child {
    let socket = socket(proxy);
    let flags = [
        "--server",
        socket.to_str().unwrap(),
        "--repo",
        "acme/web",
        "--mode",
        "bot",
    ];
    let mut command = person.bare(&flags, &["sh", "-c", "echo ready; read -r line; exit 3"]);
    let piped = std::process::Stdio::piped;
    let mut child = command
        .stdin(piped())
        .stdout(piped())
        .stderr(piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    child
}

#[test]
fn a_run_is_registered_at_the_server_while_it_lasts() {
    let Some(person) = Person::new() else { return };
    let proxy = server(&person, &person.origin);
    let mut run = wait_at(&person, &proxy);
    let registered = containers(&proxy);
    let [container] = &registered[..] else {
        panic!("{registered:?}")
    };
    assert_eq!(container["auth_mode"], "bot");
    assert_eq!(container["repos"], json!(["acme/web"]));
    let seconds = left(container);
    assert!((30.0..=61.0).contains(&seconds), "{seconds}");
    drop(run.stdin.take());
    assert_eq!(run.wait().unwrap().code(), Some(3));
    assert!(containers(&proxy).is_empty());
}

#[test]
fn the_server_judges_the_requests_of_a_run_and_the_summary_has_the_denied_ones() {
    let Some(person) = Person::new() else { return };
    let proxy = server(&person, &person.origin);
    let socket = socket(&proxy);
    let script = "curl -sSf https://api.example.com/zen; curl -s https://packages.example.org/; dig +short api.example.com";
    let flags = ["--server", socket.to_str().unwrap()];
    let ran = crate::support::Ran::of(&mut person.bare(&flags, &["sh", "-c", script]));
    assert!(ran.stdout.contains("Half measures"), "{ran:?}");
    assert!(ran.stdout.ends_with("127.0.0.1\n"), "{ran:?}");
    let words = super::answers::summary(&ran.stderr);
    assert_eq!(
        words,
        [[
            "packages.example.org",
            "1",
            "time",
            "--allow",
            "packages.example.org"
        ]],
        "{ran:?}"
    );
    proxy.audited(json!({ "host": "packages.example.org", "code": "domain_not_allowed" }));
}

#[test]
fn the_lease_is_renewed_while_the_run_lasts() {
    let Some(person) = Person::new() else { return };
    let proxy = server(&person, &person.origin);
    let mut run = wait_at(&person, &proxy);
    let end = || containers(&proxy)[0]["expires_at"].clone();
    let first = end();
    eventually("the lease is renewed", Duration::from_secs(30), || {
        end() != first
    });
    assert!(left(&containers(&proxy)[0]) <= 61.0);
    drop(run.stdin.take());
    run.wait().unwrap();
}

#[test]
fn killing_the_launcher_ends_the_sandbox_and_the_lease_is_not_renewed() {
    let Some(person) = Person::new() else { return };
    let proxy = server(&person, &person.origin);
    let mut run = wait_at(&person, &proxy);
    let pids = processes::descendants(run.id());
    processes::send(run.id(), Signal::KILL);
    run.wait().unwrap();
    processes::end_within("the sandbox ends", &pids, SOON);
    let lasting: Vec<f64> = containers(&proxy).iter().map(left).collect();
    assert!(
        lasting.iter().all(|seconds| *seconds <= 60.0),
        "{lasting:?}"
    );
    // A run renews its lease every 20 s. After the kill, no process renews the lease, so the server
    // will remove it when it expires.
    let before = containers(&proxy);
    std::thread::sleep(Duration::from_secs(21));
    assert_eq!(containers(&proxy), before);
}

#[test]
fn a_command_continues_when_the_server_of_its_run_ends() {
    let Some(person) = Person::new() else { return };
    let mut proxy = server(&person, &person.origin);
    let mut run = wait_at(&person, &proxy);
    proxy.signal(Signal::TERM);
    proxy.wait(SOON);
    assert!(run.try_wait().unwrap().is_none());
    drop(run.stdin.take());
    assert_eq!(run.wait().unwrap().code(), Some(3));
}

#[test]
fn the_admin_socket_is_not_visible_inside() {
    let Some(person) = Person::new() else { return };
    let proxy = server(&person, &person.origin);
    let socket = socket(&proxy);
    let script = "import os, sys\nfound = [os.path.join(d, f) for d, _, fs in os.walk('/', followlinks=False) for f in fs if f.endswith('.sock') and not d.startswith('/proc')]\nprint(found)\ntry:\n    import socket; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')\nexcept OSError: print('denied')";
    let flags = [
        "--server",
        socket.to_str().unwrap(),
        "--read",
        socket.parent().unwrap().to_str().unwrap(),
    ];
    let ran = crate::support::Ran::of(
        &mut person.bare(&flags, &["python3", "-c", script, socket.to_str().unwrap()]),
    );
    assert!(ran.ok().ends_with("denied\n"));
}
