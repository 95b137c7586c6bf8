//! Checks the documents: metrics and alert rules against the code, links against the files, and the
//! rows that tests/README.md names under Performance against the measured rows.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::each_row;

use crate::support::{Origin, Proxy, Ran, yaml};

#[test]
fn every_metric_that_a_running_proxy_exposes_is_documented() {
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
    let code = product_code();
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
            "no code contains {name}"
        );
    }
}

#[test]
fn the_alert_rules_parse_and_name_metrics_that_exist() {
    let rules = yaml(&read("docs/prometheus-alerts.yaml"));
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let names: Vec<_> = rules.iter().map(|rule| &rule["alert"]).collect();
    assert_eq!(
        names,
        [
            "UnifiedProxyErrors",
            "UnifiedProxyGitFailures",
            "UnifiedProxyRateLimited",
            "UnifiedProxyCircuitOpen",
            "UnifiedProxyDegraded",
            "UnifiedProxyUpstreamDns",
        ]
    );
    let code = product_code();
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut metrics = words.filter(|word| word.starts_with("proxy_")).peekable();
        assert!(metrics.peek().is_some(), "{rule}");
        for metric in metrics {
            let quoted = format!("\"{metric}\"");
            assert!(code.contains(&quoted), "no code contains {metric}");
        }
        assert!(rule["annotations"]["summary"].is_string(), "{rule}");
    }
}

#[test]
fn scripts_sandbox_prints_its_commands_and_options_on_request() {
    let script = root().join("scripts/sandbox");
    each_row(
        [
            (&["--help"][..], 0),
            (&["-h"], 0),
            (&["help"], 0),
            (&["up", "--help"], 0),
            (&["exec", "-h"], 0),
            (&[], 64),
            (&["up"], 64),
            (&["up", "web", "--unknown", "x"], 64),
        ],
        |(arguments, code)| {
            let ran = Ran::of(Command::new(&script).args(arguments));
            assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
            let parts = match code {
                0 => [
                    "sandbox up NAME",
                    "sandbox down NAME",
                    "--backend netns|docker",
                    "UNIFIED_PROXY is the binary",
                ],
                _ => ["sandbox: ", "; see ", "scripts/sandbox --help", ""],
            };
            let said = format!("{}{}", ran.stdout, ran.stderr);
            for part in parts {
                assert!(said.contains(part), "{arguments:?}: {part}: {said}");
            }
            let shows_code = said.contains("readonly") || said.contains("set -euo");
            assert!(!shows_code, "{said}");
        },
    );
}

#[test]
fn the_target_of_every_relative_link_exists() {
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
            assert!(
                there.exists(),
                "{} links to {target}, which does not exist",
                file.display()
            );
        }
    }
}

#[test]
fn the_performance_rows_that_the_readme_of_the_tests_names_are_measured() {
    let readme = read("tests/README.md");
    let (_, section) = readme.split_once("## Performance").unwrap();
    let (tables, _) = section.split_once("**Not measured**").unwrap();
    let quoted = tables.split('`').skip(1).step_by(2);
    let rows: Vec<&str> = quoted.filter(|text| text.contains(' ')).collect();
    assert!(rows.len() > 5, "{rows:?}");
    let (bar, figures) = (
        read("tests/performance/bench/bar.py"),
        read("docs/performance.md"),
    );
    each_row(rows, |row| {
        assert!(bar.contains(&format!("\"{row}\"")), "bar.py lacks {row}");
        let figure = format!("| {row} |");
        assert!(figures.contains(&figure), "performance.md lacks {row}");
    });
}

/// The text of all Rust files outside the folder `tests` of the repository's root.
fn product_code() -> String {
    let files = files(&root(), "rs");
    let product = files
        .iter()
        .filter(|file| !file.starts_with(root().join("tests")));
    product
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// All files with this extension, except in directories named `target` or with a leading dot.
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
