//! The sample files in `config/`: they load, they differ from the defaults only in the allowlist
//! and the credentials, and unknown keys in them are refused.

use std::fs;
use std::path::Path;

use saphyr_parser::{Event, Parser};
use unified_proxy::config::{Config, Profile, load_with};

use super::{env, load_files, load_one};

pub fn samples() -> Vec<(&'static str, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    vec![
        ("proxy.yaml", read("proxy.yaml")),
        ("allowlist.yaml", read("allowlist.yaml")),
        ("policy.yaml", read("policy.yaml.example")),
        ("credentials.yaml", read("credentials.yaml")),
        ("mcp.yaml", read("mcp.yaml.example")),
    ]
}

#[test]
fn the_samples_differ_from_the_defaults_only_in_allowlist_and_credentials() {
    let samples = samples();
    let files: Vec<_> = samples
        .iter()
        .map(|(n, text)| (*n, text.as_bytes()))
        .collect();
    let config = load_files(&files).unwrap();
    let defaults = load_files(&[]).unwrap();
    let show = |config: &Config| format!("{:#?}", config.proxy);
    assert_eq!(show(&config), show(&defaults));
    let (said, default) = (&config.addons, &defaults.addons);
    assert_eq!(said.audit, default.audit);
    assert_eq!(said.rate_limit, default.rate_limit);
    assert_eq!(said.circuit_breaker, default.circuit_breaker);
    assert_eq!(said.policy, default.policy);
    assert_eq!(said.github, default.github);
    assert_eq!(said.git, default.git);
    assert_eq!(said.mcp, default.mcp);
    assert_eq!(said.allowlist.values().count(), 17);
    assert!(config.addons.credentials.active.is_empty());
    let [inactive] = config.warnings.as_slice() else {
        panic!("{:?}", config.warnings);
    };
    let expected = "credentials.yaml: 9 credentials are inactive, their secrets are empty: github-git (GITHUB_TOKEN), ";
    assert!(inactive.starts_with(expected), "{inactive}");
}

#[test]
fn every_host_of_the_shipped_allowlist_has_its_reason_on_its_line() {
    let text = samples().remove(1).1;
    let hosts = text.lines().filter(|line| line.starts_with("  - "));
    let hosts: Vec<_> = hosts.collect();
    assert_eq!(hosts.len(), 17);
    for line in hosts {
        let reason = line.split_once(" # ").map(|(_, reason)| reason.trim());
        assert!(reason.is_some_and(|reason| !reason.is_empty()), "{line}");
    }
}

#[test]
fn the_shipped_credentials_are_for_hosts_of_the_shipped_allowlist() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let config = load_with(&dir, Profile::Serve, &|_| Some("key".to_owned()));
    let config = config.unwrap_err().to_string();
    // The only error is that `key` is not a log level.
    assert_eq!(config.lines().count(), 1, "{config}");
    let env = |name: &str| (name != "LOG_LEVEL").then(|| "key".to_owned());
    let config = load_with(&dir, Profile::Serve, &env).unwrap();
    let personal = |warning: &String| warning.contains("one token for all its containers");
    assert!(
        config.warnings.iter().all(personal),
        "{:?}",
        config.warnings
    );
    assert!(!config.addons.credentials.active.is_empty());
    for (host, port) in config
        .addons
        .credentials
        .active
        .iter()
        .flat_map(|c| &c.hosts)
    {
        let entry = config.addons.allowlist.find(host);
        assert!(
            entry.is_some_and(|entry| entry.ports.contains(port)),
            "{host}"
        );
    }
}

#[test]
fn the_samples_do_not_change_the_defaults_of_dev() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let proxy = load_with(&dir, Profile::Dev, &env).unwrap().proxy;
    let addresses = [&proxy.listen.proxy, &proxy.listen.dns, &proxy.listen.mcp];
    assert_eq!(
        addresses.map(|addresses| addresses[0].to_string()),
        ["127.0.0.1:8080", "127.0.0.1:5353", "127.0.0.1:8090"]
    );
    assert_eq!(proxy.listen.admin, Path::new("./.unified-proxy/api.sock"));
    assert_eq!(proxy.data_dir, Path::new("./.unified-proxy"));
    assert_eq!(proxy.certs_dir, Path::new("./.unified-proxy/certs"));
}

/// Copies of the text, each with an unknown key in a different mapping.
fn with_bogus_key(text: &str) -> Vec<String> {
    let byte_of = |index: usize| {
        text.char_indices()
            .nth(index)
            .map_or(text.len(), |(at, _)| at)
    };
    let mut parser = Parser::new_from_str(text);
    let mut mutants = Vec::new();
    while let Some(Ok((event, span))) = parser.next_event() {
        if !matches!(event, Event::MappingStart(..)) {
            continue;
        }
        let (before, rest) = text.split_at(byte_of(span.start.index()));
        mutants.push(match rest.strip_prefix('{') {
            Some(rest) => format!("{before}{{bogus_key: 1, {rest}"),
            None => {
                let indent = " ".repeat(span.start.col());
                format!("{before}bogus_key: 1\n{indent}{rest}")
            }
        });
    }
    mutants
}

#[test]
fn a_bogus_key_anywhere_in_a_sample_is_refused_by_name() {
    let mut count = 0;
    for (name, text) in samples() {
        for mutant in with_bogus_key(&text) {
            let errors = load_one(name, &mutant).expect_err(&mutant);
            let named = errors.lines().all(|line| line.contains("bogus_key: "));
            assert!(
                named,
                "{mutant}
{errors}"
            );
            count += 1;
        }
    }
    assert!(count > 40, "{count} mappings");
}
