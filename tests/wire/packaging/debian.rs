//! The Debian package: its files, configuration, user, AppArmor profile, completions and version.

use std::path::Path;
use std::process::Command;

use regex::Regex;
use testkit::each_row;

use super::{program, read, root, run};
use crate::support::yaml;

/// Source and destination of each asset of the package, from Cargo.toml.
fn assets() -> Vec<(String, String)> {
    let manifest = read("Cargo.toml");
    let asset = Regex::new(r#"(?m)^    \["([^"]+)", "([^"]+)", "\d+"\],$"#).unwrap();
    let found = asset.captures_iter(&manifest);
    found
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect()
}

#[test]
fn every_file_of_the_package_exists_or_is_made_by_the_release_script() {
    let assets = assets();
    assert!(assets.len() > 12, "{assets:?}");
    let release = read("scripts/release");
    each_row(assets, |(source, _)| {
        match source.strip_prefix("target/dist/") {
            Some(made) => assert!(release.contains(made), "scripts/release lacks {made}"),
            None => {
                let folder = source.strip_suffix("/*.1").unwrap_or(&source);
                assert!(root().join(folder).exists(), "{source}");
            }
        }
    });
}

#[test]
fn every_file_below_etc_is_a_conffile() {
    let manifest = read("Cargo.toml");
    let configured = assets()
        .into_iter()
        .filter(|(_, to)| to.starts_with("etc/"));
    let configured: Vec<_> = configured.collect();
    assert_eq!(configured.len(), 3);
    each_row(configured, |(source, to)| {
        let name = source.rsplit('/').next().unwrap();
        assert!(
            manifest.contains(&format!("\"/{to}{name}\"")),
            "/{to}{name}"
        );
    });
}

#[test]
fn the_packaged_configuration_is_valid_and_its_certs_dir_is_a_state_directory_of_the_unit() {
    let config = tempfile::tempdir().unwrap();
    for file in [
        "packaging/debian/proxy.yaml",
        "config/allowlist.yaml",
        "config/credentials.yaml",
    ] {
        let name = file.rsplit('/').next().unwrap();
        std::fs::copy(root().join(file), config.path().join(name)).unwrap();
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_unified-proxy"));
    let (code, output) = run(check.args(["check", "--config"]).arg(config.path()));
    assert_eq!(code, 0, "{output}");
    let certs = yaml(&read("packaging/debian/proxy.yaml"))["certs_dir"].clone();
    let below = certs.as_str().unwrap().strip_prefix("/var/lib/").unwrap();
    let unit = read("packaging/systemd/unified-proxy.service");
    let state = unit
        .lines()
        .find_map(|line| line.strip_prefix("StateDirectory="))
        .unwrap();
    assert!(
        state.split(' ').any(|directory| directory == below),
        "{state}"
    );
}

#[test]
fn maintainer_scripts_parse_as_sh_and_have_the_debhelper_token() {
    each_row(["postinst", "postrm"], |name| {
        let script = root().join("packaging/debian").join(name);
        let (code, output) = run(Command::new("sh").arg("-n").arg(&script));
        assert_eq!(code, 0, "{output}");
        assert!(
            std::fs::read_to_string(script)
                .unwrap()
                .contains("#DEBHELPER#"),
            "{name}"
        );
    });
}

#[test]
fn sysusers_creates_the_user_of_the_unit() {
    let sysusers = read("packaging/sysusers.d/unified-proxy.conf");
    assert!(
        sysusers
            .lines()
            .any(|line| line.starts_with("u unified-proxy "))
    );
}

#[test]
fn the_apparmor_profile_names_the_installed_binary_and_allows_user_namespaces() {
    let profile = read("packaging/apparmor/unified-proxy");
    assert!(profile.lines().any(|line| line.trim() == "userns,"));
    assert!(profile.contains("/usr/{,local/}bin/unified-proxy flags=(unconfined)"));
    let Some(parser) = program("apparmor_parser") else {
        return;
    };
    if !Path::new("/etc/apparmor.d/abi/4.0").exists() {
        crate::support::left_out("wire", "apparmor_parser", "it is older than 4.0");
        return;
    }
    let mut parse = Command::new(parser);
    parse.args(["--skip-kernel-load", "--skip-cache"]);
    let (code, output) = run(parse.arg(root().join("packaging/apparmor/unified-proxy")));
    assert_eq!(code, 0, "{output}");
}

#[test]
fn each_shell_parses_its_completions() {
    each_row(
        [
            ("bash", "unified-proxy.bash"),
            ("zsh", "_unified-proxy"),
            ("fish", "unified-proxy.fish"),
        ],
        |(shell, file)| {
            let Some(shell) = program(shell) else { return };
            let script = root().join("packaging/completions").join(file);
            let (code, output) = run(Command::new(shell).arg("-n").arg(script));
            assert_eq!(code, 0, "{output}");
        },
    );
}

/// Checks `--version` of a build that `scripts/release` did not make.
#[test]
fn the_version_of_a_development_build_is_that_of_the_manifest_and_changelog() {
    let (code, output) = run(Command::new(env!("CARGO_BIN_EXE_unified-proxy")).arg("--version"));
    assert_eq!(code, 0);
    let expected = format!("unified-proxy {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(output, expected);
    let changelog = read("packaging/debian/changelog");
    assert!(changelog.starts_with(&format!("unified-proxy ({}-1)", env!("CARGO_PKG_VERSION"))));
}
