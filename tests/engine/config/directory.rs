//! Files of the configuration directory that cannot be read or are not read, errors that concern
//! several files, and reading only the admin socket.

use std::fs;
use std::path::Path;

use unified_proxy::config::{Profile, admin_socket, load};

use super::{load_files, load_one};

#[test]
fn errors_of_all_files_are_reported_at_once_in_order() {
    let errors = load_files(&[
        ("proxy.yaml", b"version: 1\nx: 1\nadmin_mode: \"9\"\n"),
        ("policy.yaml", b"version: 1\ngit: { hosts: [\n"),
        ("allowlist.yaml", b"domains: [\"*\"]\n"),
        ("credentials.yaml", b"version: 1\ncredentials: [\xff]\n"),
        ("mcp.yaml", b"mcpServer: {}\n"),
    ])
    .unwrap_err();
    let places: Vec<_> = errors
        .lines()
        .map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        places,
        [
            "allowlist.yaml:1:1 version",
            "allowlist.yaml:1:11 domains[0]",
            "credentials.yaml:2:15 is not UTF-8",
            "mcp.yaml:1:1 mcpServer",
            "policy.yaml:3:1 git.hosts[0]",
            "proxy.yaml:2:1 x",
            "proxy.yaml:3:13 admin_mode",
        ]
    );
}

#[test]
fn a_directory_or_file_that_cannot_be_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    let error = load(&absent, Profile::Serve).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}: ", absent.display())),
        "{error}"
    );

    fs::create_dir(dir.path().join("policy.yaml")).unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.path().join("proxy.yaml")).unwrap();
    let error = load(dir.path(), Profile::Serve).unwrap_err().to_string();
    assert_eq!(
        error,
        "policy.yaml: cannot be read: it is not a regular file\n\
         proxy.yaml: cannot be read: No such file or directory (os error 2)"
    );
}

#[test]
fn passthrough_hosts_may_have_neither_git_rules_nor_credentials() {
    let errors = load_files(&[
        (
            "proxy.yaml",
            b"version: 1\ntls:\n  passthrough:\n    - \"*.example.com\"\n    - github.com\n    - raw.githubusercontent.com\n    - fine.example\n",
        ),
        (
            "credentials.yaml",
            b"version: 1\ncredentials: [{ name: a, hosts: [key.example.com], bearer: \"${EMPTY}\" }]\n",
        ),
    ])
    .unwrap_err();
    assert_eq!(
        errors,
        "proxy.yaml:4:7: tls.passthrough[0]: key.example.com has the credential a, so its requests must be decrypted: remove this pattern from tls.passthrough\n\
         proxy.yaml:5:7: tls.passthrough[1]: github.com has git rules, so its requests must be decrypted: remove this pattern from tls.passthrough\n\
         proxy.yaml:6:7: tls.passthrough[2]: raw.githubusercontent.com has git rules, so its requests must be decrypted: remove this pattern from tls.passthrough"
    );
}

#[test]
fn mcp_yaml_can_be_the_json_of_mcp_clients_and_unknown_keys_in_it_are_refused() {
    let json = "{\n\t\"mcpServers\": { \"a\": { \"command\": \"x\" } },\n\t\"overrides\": {}\n}\n";
    let config = load_one("mcp.yaml", json).unwrap();
    assert!(config.addons.mcp.servers.contains_key("a"));
    let errors = load_one("mcp.yaml", "version: 2\nextra: {}\n").unwrap_err();
    assert!(
        errors.contains("mcp.yaml:1:10: version: must be 1"),
        "{errors}"
    );
    assert!(
        errors.contains("mcp.yaml:2:1: extra: unknown key"),
        "{errors}"
    );
}

#[test]
fn a_yaml_file_that_is_not_read_causes_a_warning() {
    let config = load_files(&[("allowlist.yml", b"")]).unwrap();
    assert!(config.warnings[0].starts_with("\"allowlist.yml\" is not read"));
}

#[test]
fn the_admin_socket_is_read_from_proxy_yaml_alone() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name, text: &str| fs::write(dir.path().join(name), text).unwrap();
    // Keys of addons are accepted, and proxy.yaml is not checked against policy.yaml.
    let proxy = "version: 1\nlisten: { admin: a.sock }\nlimits: { tunnels_per_second: 5 }\ntls: { passthrough: [github.com] }\n";
    write("proxy.yaml", proxy);
    write(
        "policy.yaml",
        "version: 1\ngit: { hosts: [\"${NOT_SET}\"] }\n",
    );
    let socket = admin_socket(dir.path(), Profile::Serve).unwrap();
    assert_eq!(socket, Path::new("a.sock"));
    write("proxy.yaml", "version: 1\nlisten: { admn: a.sock }\n");
    let errors = admin_socket(dir.path(), Profile::Serve).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "proxy.yaml:2:11: listen.admn: unknown key; did you mean admin?"
    );
}
