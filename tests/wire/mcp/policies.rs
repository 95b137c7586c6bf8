//! Changes of policies while the proxy runs, and `check` of policies.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::each_row;

use super::client::{Gateway, call};
use crate::support::{Origin, Setup, eventually};

const ALLOW: &str = "package mcp.authz\n\ndecision := \"allow\"\n";
const DENY: &str = "package mcp.authz\n\ndecision := \"deny_continue\"\n";
const BROKEN: &str = "package mcp.authz\n\ndecision = := 1\n";
const DENIED: i64 = -32951;
/// Bound on the time from the change of a file to its effect.
const PROMISED: Duration = Duration::from_secs(5);

/// A gateway with one bundle, and `on_unavailable: allow`: a call passes if the bundle is not
/// loaded.
fn with_policy(text: &str) -> Gateway {
    Gateway::start_with(|setup| {
        let bundle = setup.dir().join("bundle");
        fs::create_dir(&bundle).unwrap();
        fs::write(bundle.join("authz.rego"), text).unwrap();
        write_settings(&setup.dir().join("config/mcp.yaml"), &bundle);
    })
}

/// Adds the bundle to an `mcp.yaml`, on its fourth line.
fn write_settings(path: &Path, bundle: &Path) {
    let mcp: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let (servers, bundle) = (&mcp["mcpServers"], bundle.display());
    let text = format!(
        "mcpServers: {servers}\npolicies:\n  bundles:\n    - {{ id: main, path: \"{bundle}\", entrypoint: mcp/authz }}\n  on_unavailable: allow\n"
    );
    fs::write(path, text).unwrap();
}

fn policy(gateway: &Gateway) -> PathBuf {
    gateway.proxy.path("bundle/authz.rego")
}

/// The error code of a call; 0 if the call passed.
fn decided(gateway: &Gateway) -> i64 {
    let called = gateway.post(&gateway.session(), &call(1, "echo", json!({})));
    let code = &called.json()["error"]["code"];
    code.as_i64().unwrap_or_default()
}

fn is_current(gateway: &Gateway) -> bool {
    gateway.proxy.health().json()["checks"]["configuration_current"] == true
}

fn reload(gateway: &Gateway) -> (u16, String) {
    let reply = gateway.proxy.admin("POST", "/internal/reload", None);
    (reply.status, reply.text())
}

fn failed_reloads(gateway: &Gateway) -> f64 {
    let label = ["status=\"failed\""];
    gateway.proxy.metric("proxy_config_reloads_total", &label)
}

fn archive(text: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    builder
        .append_data(&mut header, "authz.rego", text.as_bytes())
        .unwrap();
    builder.into_inner().unwrap().finish().unwrap()
}

#[test]
fn a_reload_with_a_policy_that_does_not_load_is_refused_and_the_policy_in_force_decides() {
    type Damage = fn(&Gateway);
    let breakages: [(&str, Damage, &str); 3] = [
        (
            "it does not compile",
            |gateway| fs::write(policy(gateway), BROKEN).unwrap(),
            "authz.rego:3",
        ),
        (
            "it is missing",
            |gateway| fs::remove_dir_all(gateway.proxy.path("bundle")).unwrap(),
            "bundle cannot be read: No such file",
        ),
        (
            "it is too large",
            |gateway| {
                let data = format!("\"{}\"", "x".repeat(17 << 20));
                fs::write(gateway.proxy.path("bundle/data.json"), data).unwrap();
            },
            "more than 16777216 bytes",
        ),
    ];
    each_row(breakages, |(_, damage, reason)| {
        let gateway = with_policy(DENY);
        assert_eq!(decided(&gateway), DENIED);
        damage(&gateway);
        let (status, said) = reload(&gateway);
        assert_eq!(status, 422, "{said}");
        for part in ["mcp.yaml:4:7: policies.bundles[0]: ", reason] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
        let before = failed_reloads(&gateway);
        gateway.proxy.signal(Signal::HUP);
        eventually("the reload by SIGHUP fails", PROMISED, || {
            failed_reloads(&gateway) > before
        });
        assert!(!is_current(&gateway));
        let checks = gateway.proxy.health().json()["checks"].clone();
        assert_eq!(checks["mcp_policies_loaded"], true);
        assert_eq!(decided(&gateway), DENIED);

        fs::create_dir_all(gateway.proxy.path("bundle")).unwrap();
        let _ = fs::remove_file(gateway.proxy.path("bundle/data.json"));
        fs::write(policy(&gateway), ALLOW).unwrap();
        eventually("the corrected policy is in force", PROMISED, || {
            is_current(&gateway) && decided(&gateway) == 0
        });
    });
}

#[test]
fn a_policy_that_was_not_loaded_at_the_start_blocks_no_change_of_other_settings() {
    let gateway = with_policy(BROKEN);
    assert_eq!(decided(&gateway), 0);
    // The entry moves within the file, and another setting changes.
    let path = gateway.proxy.path("config/mcp.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let renamed = "overrides: { \"by-hand:echo\": { rename: renamed } }";
    fs::write(&path, format!("{renamed}\n{text}")).unwrap();
    let (status, said) = reload(&gateway);
    assert_eq!(status, 200, "{said}");
    let mut called = call(1, "echo", json!({}));
    called["params"]["name"] = "renamed".into();
    let called = gateway.post(&gateway.session(), &called).json();
    assert!(called["result"].is_object(), "{called}");
    // A changed or added entry is another policy, which must load.
    let entry = "    - {";
    let added = "    - { id: gone, path: /gone, entrypoint: mcp/authz }";
    for changed in [
        text.replace("mcp/authz", "mcp/other"),
        text.replace(entry, &format!("{added}\n{entry}")),
    ] {
        fs::write(&path, changed).unwrap();
        let (status, said) = reload(&gateway);
        assert_eq!(status, 422, "{said}");
        assert!(said.contains("mcp.yaml:4:7: policies.bundles[0]"), "{said}");
    }

    fs::write(&path, &text).unwrap();
    fs::write(policy(&gateway), DENY).unwrap();
    eventually("the corrected policy is in force", PROMISED, || {
        decided(&gateway) == DENIED
    });
    fs::write(policy(&gateway), BROKEN).unwrap();
    let (status, said) = reload(&gateway);
    assert_eq!(status, 422, "{said}");
    assert_eq!(decided(&gateway), DENIED);
}

#[test]
fn an_edited_policy_is_in_force_within_five_seconds() {
    let gateway = with_policy(ALLOW);
    assert_eq!(decided(&gateway), 0);
    fs::write(policy(&gateway), DENY).unwrap();
    eventually("the edit is in force", PROMISED, || {
        decided(&gateway) == DENIED
    });
    // The watcher, too, refuses an edit that does not load.
    fs::write(policy(&gateway), BROKEN).unwrap();
    eventually("`configuration_current` fails", PROMISED, || {
        !is_current(&gateway)
    });
    assert_eq!(decided(&gateway), DENIED);

    let file = gateway.proxy.path("bundle.tar.gz");
    let path = gateway.proxy.path("config/mcp.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let before = failed_reloads(&gateway);
    fs::write(&path, text.replace("/bundle\"", "/bundle.tar.gz\"")).unwrap();
    eventually("the reload without the archive fails", PROMISED, || {
        failed_reloads(&gateway) > before
    });
    fs::write(&file, archive(ALLOW)).unwrap();
    eventually("the archive is in force", PROMISED, || {
        decided(&gateway) == 0
    });
    let replacement = gateway.proxy.path("replacement");
    fs::write(&replacement, archive(DENY)).unwrap();
    fs::rename(replacement, file).unwrap();
    eventually("the replacement is in force", PROMISED, || {
        decided(&gateway) == DENIED
    });
}

#[test]
fn unchanged_policies_cause_no_reload() {
    let gateway = with_policy(ALLOW);
    let reloads = || gateway.proxy.metric("proxy_config_reloads_total", &[]);
    // A file that the loader does not read.
    fs::write(gateway.proxy.path("bundle/README.md"), "none").unwrap();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(reloads(), 0.0);
}

#[test]
fn one_check_reports_policies_that_do_not_load_and_all_other_errors() {
    let origin = Origin::start();
    let setup = Setup::new(&origin);
    setup.write();
    let path = |name: &str| setup.dir().join(name).display().to_string();
    fs::create_dir(path("bundle")).unwrap();
    fs::write(path("bundle/authz.rego"), BROKEN).unwrap();
    let (broken, gone) = (path("bundle"), path("gone"));
    let mcp = format!(
        "policies:\n  bundles:\n    - {{ id: none }}\n    - {{ id: main, path: \"{broken}\", entrypoint: mcp/authz }}\n    - {{ id: gone, path: \"{gone}\", entrypoint: mcp/authz }}\n"
    );
    fs::write(path("config/mcp.yaml"), mcp).unwrap();
    fs::write(path("config/policy.yaml"), "version: 1\nbogus: 1\n").unwrap();
    let (code, said) = setup.run("check");
    assert_eq!(code, 78, "{said}");
    for part in [
        "mcp.yaml:3:7: policies.bundles[0].path: is missing",
        "mcp.yaml:4:7: policies.bundles[1]: ",
        "authz.rego:3",
        "mcp.yaml:5:7: policies.bundles[2]: ",
        "gone cannot be read: No such file",
        "policy.yaml:2:1: bogus",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}
