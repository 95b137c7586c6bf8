//! Clients of many kinds, which use the real binary with only the variables of `unified-proxy env`.
//! Requests to an allowed host must succeed, requests to a denied one must fail.
//! `docs/compatibility.md` has the results.

mod clients;
mod place;
mod stand_ins;
mod table;
mod tools;

use std::path::Path;

use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, SOON, Setup, eventually};
use clients::CLIENTS;
use place::{Place, shell};
use tools::Tools;

/// A configuration in which the origin has every host name of the clients.
fn setup(origin: &Origin, tools: &Tools) -> Setup {
    stand_ins::repository(origin);
    stand_ins::registries(origin, tools);
    let mut setup = Setup::new(origin);
    for host in stand_ins::HOSTS {
        setup.host(host, origin.https);
    }
    setup
}

/// Starts a proxy that reaches the origin under every allowed host name.
fn start(origin: &Origin, tools: &Tools) -> Proxy {
    let mut setup = setup(origin, tools);
    for credential in stand_ins::credentials() {
        setup.credential(credential);
    }
    setup.start()
}

/// The variables that `unified-proxy env` prints for this proxy.
fn environment(proxy: &Proxy) -> Vec<(String, String)> {
    let printed = proxy.cli(&["env", "--shell", "json"]).ok();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    let pairs = printed.as_object().unwrap().iter();
    pairs
        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

/// Installs the clients while other tests run, which takes minutes the first time.
#[test]
fn clients_are_installed_only_once() {
    let made = |tools: &Tools| {
        let markers = ["python", "npm", "go", "java"].map(|name| tools.dir.join(name));
        let made = markers.map(|marker| marker.with_extension("installed").metadata());
        made.map(|made| made.and_then(|made| made.modified()).ok())
    };
    let first = made(&Tools::install());
    assert_eq!(made(&Tools::install()), first);
}

#[test]
fn each_installed_client_works_with_the_variables_of_env_as_documented() {
    let tools = Tools::install();
    let origin = Origin::scripted(stand_ins::answer);
    let proxy = start(&origin, &tools);
    let place = Place {
        environment: environment(&proxy),
        start: &shell,
    };
    let rows = try_all(&place, &tools, &|| denials(&proxy));
    let seen = format!("{:?}", origin.seen());
    assert!(
        !seen.contains(stand_ins::PLACEHOLDER),
        "a placeholder reached an API"
    );
    table::compare(&rows, &tools);
}

/// Runs the same clients in sandboxes of `run --server`, which sets their environment.
#[test]
fn each_installed_client_works_inside_a_sandbox_of_run_as_documented() {
    let tools = Tools::install();
    let origin = Origin::scripted(stand_ins::answer);
    let proxy = start(&origin, &tools);
    let socket = proxy.path("api.sock");
    // The directories of Cargo and Python, from which clients load files. Without `--read`, a
    // sandbox does not show such a directory if it is in a home directory.
    let python = tools.dir.join("python/bin/python").canonicalize();
    let programs = [Some(Path::new(env!("CARGO")).to_owned()), python.ok()];
    let loaded = programs.iter().flatten();
    let loaded = loaded.map(|program| program.parent().unwrap().parent().unwrap().to_owned());
    let loaded: Vec<_> = loaded.filter(|path| !path.starts_with("/usr")).collect();
    let sandboxed = |directory: &Path, program: &[&str]| {
        let mut command = shell(directory, &[env!("CARGO_BIN_EXE_unified-proxy")]);
        let home = directory.join("home");
        std::fs::create_dir_all(&home).unwrap();
        let work = directory.join("work");
        std::fs::create_dir_all(&work).unwrap();
        command
            .args(["run", "--quiet", "--server"])
            .arg(&socket)
            .arg("--read")
            .arg(&tools.dir)
            .args(
                loaded
                    .iter()
                    .flat_map(|path| ["--read".as_ref(), path.as_os_str()]),
            )
            .arg("--")
            .args(program)
            .env("HOME", home)
            .current_dir(work);
        command
    };
    let can = sandboxed(tempfile::TempDir::new().unwrap().path(), &["true"]).output();
    let can = can.unwrap();
    let name = "clients inside run";
    if !can.status.success() {
        let why = String::from_utf8_lossy(&can.stderr);
        return crate::support::left_out("compatibility", name, why.trim());
    }
    let place = Place {
        environment: Vec::new(),
        start: &sandboxed,
    };
    let rows = try_all(&place, &tools, &|| denials(&proxy));
    table::compare(&rows, &tools);
}

/// Clients whose hosts a person must approve: each fetches, clones or installs.
const ASKING: [&str; 5] = ["curl", "git, protocol v2", "pip", "npm", "Node.js `https`"];

#[test]
fn a_client_shows_what_to_do_about_an_unknown_host_and_works_after_the_approval() {
    let tools = Tools::install();
    let origin = Origin::start();
    let mut setup = setup(&origin, &tools);
    setup.allowlist["domains"] = json!(["other.example.com"]);
    setup.policy = Some(json!({ "version": 1, "policy": { "unknown_hosts": "ask" } }));
    let proxy = setup.start();
    let place = Place {
        environment: environment(&proxy),
        start: &shell,
    };
    let approve = || {
        let pending = proxy.admin("GET", "/internal/approvals?state=pending", None);
        let pending = pending.json()["approvals"].clone();
        assert_eq!(pending.as_array().unwrap().len(), 1, "{pending}");
        let id = pending[0]["id"].as_str().unwrap().to_owned();
        proxy.cli(&["approvals", "approve", &id]).ok();
        id
    };
    each_row(ASKING, |name| {
        let client = CLIENTS.iter().find(|client| client.name == name).unwrap();
        if client
            .needs
            .iter()
            .any(|tool| tools.missing(*tool).is_some())
        {
            return;
        }
        client.try_asking(&place, &tools, &approve);
        // The next client of the same host asks again.
        let grants = proxy.admin("GET", "/internal/grants", None).json();
        let grant = grants["grants"][0]["id"].as_str().unwrap();
        proxy.cli(&["approvals", "revoke", grant]).ok();
    });
}

/// Runs, in a place, every client that is installed; `denials` returns the number of audited
/// denials of [`clients::DENIED_HOST`]. Returns name and table line of each client that ran.
fn try_all(
    place: &Place<'_>,
    tools: &Tools,
    denials: &dyn Fn() -> usize,
) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    each_row(CLIENTS, |client| {
        let missing = client.needs.iter().find_map(|tool| tools.missing(*tool));
        tools.summarize(client.name, missing.as_ref());
        if missing.is_some() {
            return;
        }
        let before = denials();
        let shown = client.try_in(place, tools);
        eventually("the denial is audited", SOON, || denials() > before);
        rows.push((client.name, client.line(shown)));
    });
    rows
}

/// Number of audited denials of [`clients::DENIED_HOST`].
fn denials(proxy: &Proxy) -> usize {
    let lines = proxy.audit().into_iter();
    let lines = lines.filter(|line| line["host"] == clients::DENIED_HOST);
    lines
        .filter(|line| line["code"] == "domain_not_allowed")
        .count()
}
