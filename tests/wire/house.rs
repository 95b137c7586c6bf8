//! What the documents promise of the code and of themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Origin, Proxy};

#[test]
fn addons_open_no_socket_no_tls_session_and_no_database() {
    let manifest = root().join("Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--no-deps",
            "--manifest-path",
        ])
        .arg(manifest)
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let addons = packages
        .iter()
        .find(|package| package["name"] == "addons")
        .unwrap();
    for dependency in addons["dependencies"].as_array().unwrap() {
        if dependency["kind"] == "dev" {
            continue;
        }
        let name = dependency["name"].as_str().unwrap();
        let opens = [
            "hyper",
            "rustls",
            "hickory",
            "rusqlite",
            "socket2",
            "axum",
            "unified-proxy",
        ];
        assert!(
            !opens.iter().any(|prefix| name.starts_with(prefix)),
            "addons name {name}"
        );
        if name == "tokio" {
            let features = dependency["features"].as_array().unwrap();
            assert!(
                !features.iter().any(|f| f == "net" || f == "full"),
                "{features:?}"
            );
        }
    }
}

#[test]
fn every_metric_is_documented() {
    let documented = read("docs/observability.md");
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.fetch("api.example.com", "/echo");
    proxy.get("http://blocked.example.org/", &[]);
    let exposed = proxy.admin("GET", "/internal/metrics", None).text();
    let names = exposed
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let mut names = names.filter_map(|line| line.split(' ').next()).peekable();
    assert!(names.peek().is_some(), "{exposed}");
    for name in names {
        assert!(
            documented.contains(&format!("`{name}")),
            "{name} is not in observability.md"
        );
    }
}

#[test]
fn every_documented_metric_exists() {
    let documented = read("docs/observability.md");
    let mut code = String::new();
    for file in files(&root(), "rs") {
        let product = !file.starts_with(root().join("tests"));
        code += &if product {
            std::fs::read_to_string(file).unwrap()
        } else {
            String::new()
        };
    }
    let names = documented
        .split('`')
        .filter(|text| text.starts_with("proxy_"));
    let names: Vec<&str> = names
        .map(|text| text.split(['{', ' ']).next().unwrap())
        .collect();
    assert!(!names.is_empty());
    for name in names {
        assert!(
            code.contains(&format!("\"{name}\"")),
            "{name} is nowhere in the code"
        );
    }
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    for file in files(&root(), "md") {
        let text = std::fs::read_to_string(&file).unwrap();
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let path = target.split('#').next().unwrap();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let there = file.parent().unwrap().join(path);
            assert!(there.exists(), "{} links to {target}", file.display());
        }
    }
}

#[test]
fn every_test_that_the_security_map_names_exists() {
    let mut code = String::new();
    for file in files(&root(), "rs") {
        code += &std::fs::read_to_string(file).unwrap();
    }
    let map = read("tests/security/README.md");
    let names = map
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|text| !text.contains(['/', '.', ' ']));
    let mut count = 0;
    for name in names {
        let name = name.rsplit("::").next().unwrap();
        assert!(
            code.contains(&format!("fn {name}(")),
            "there is no test {name}"
        );
        count += 1;
    }
    assert!(count > 40, "{count} tests are named");
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// All files of a kind that belong to the project.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let skipped = name == "target" || name.to_string_lossy().starts_with('.');
        if path.is_dir() && !skipped {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}
