//! Checks that every test named in tests/README.md and tests/security/README.md exists and is not
//! ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde_json::Value;
use testkit::each_row;

/// Fails if one of the README files names a test that no test binary lists, or that is ignored.
/// Lists the tests with `--list` instead of searching the sources, where comments and helper
/// functions would match.
#[test]
fn every_test_named_in_a_readme_is_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = test_binaries(root);
    let mut tests = BTreeSet::new();
    let mut missing = Vec::new();
    for source in test_sources(root) {
        let newest_first = built.get(&source).into_iter().flatten();
        match newest_first.rev().find_map(|(_, binary)| run_by(binary)) {
            Some(listed) => tests.extend(listed),
            None => missing.push(source),
        }
    }
    assert!(
        missing.is_empty(),
        "no test binary was built from {missing:?}; run ./scripts/test or \
         `cargo test --workspace`, which build them all before the first test runs"
    );

    each_row(["tests/security/README.md", "tests/README.md"], |map| {
        let named = names(&std::fs::read_to_string(root.join(map)).unwrap());
        assert!(named.len() > 40, "only {} tests are named", named.len());
        let unknown: Vec<_> = named.difference(&tests).collect();
        assert!(
            unknown.is_empty(),
            "{map} names tests that are not run: {unknown:#?}"
        );
    });
}

#[test]
fn comments_and_helpers_are_not_listed() {
    // Lists the running binary, even if a newer build of it exists.
    let listed = run_by(&std::env::current_exe().unwrap()).unwrap();
    assert!(listed.contains("comments_and_helpers_are_not_listed"));
    each_row(["test_binaries", "a_name_in_a_comment"], |name| {
        assert!(!listed.contains(name), "{name} is listed");
    });
}

/// Returns each text in backquotes that has no `/`, `.` or space, without its module path.
fn names(map: &str) -> BTreeSet<String> {
    let quoted = map.split('`').skip(1).step_by(2);
    quoted
        .filter(|text| !text.contains(['/', '.', ' ']))
        .map(last_segment)
        .collect()
}

fn last_segment(path: &str) -> String {
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

/// Root file of each workspace target that `cargo test` builds (`test = true`).
fn test_sources(root: &Path) -> Vec<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root)
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let targets = packages
        .iter()
        .flat_map(|package| package["targets"].as_array().unwrap());
    targets
        .filter(|target| target["test"] == true)
        .map(|target| PathBuf::from(target["src_path"].as_str().unwrap()))
        .collect()
}

/// Maps each root source file to the executables built from it, oldest first, in the directory of
/// the running test. Cargo leaves the executables of earlier builds in place.
fn test_binaries(root: &Path) -> BTreeMap<PathBuf, BTreeSet<(SystemTime, PathBuf)>> {
    let own = std::env::current_exe().unwrap();
    let mut built: BTreeMap<PathBuf, BTreeSet<_>> = BTreeMap::new();
    for entry in std::fs::read_dir(own.parent().unwrap()).unwrap().flatten() {
        let dependencies = entry.path();
        let binary = dependencies.with_extension("");
        if dependencies.extension().is_none_or(|e| e != "d") || !binary.is_file() {
            continue;
        }
        // The first prerequisite is the root file, relative to the workspace.
        let text = std::fs::read_to_string(&dependencies).unwrap();
        let source = text
            .split_once(": ")
            .and_then(|(_, rest)| rest.split_whitespace().next());
        if let (Some(source), Ok(modified)) = (source, binary.metadata().unwrap().modified()) {
            let of_source = built.entry(root.join(source)).or_default();
            of_source.insert((modified, binary));
        }
    }
    built
}

/// The tests that a binary runs by default; `None` if it is not a test binary, such as the
/// product's executable.
fn run_by(binary: &Path) -> Option<BTreeSet<String>> {
    let all = list(binary, &[])?;
    let ignored = list(binary, &["--ignored"])?;
    Some(
        all.difference(&ignored)
            .map(|path| last_segment(path))
            .collect(),
    )
}

fn list(binary: &Path, options: &[&str]) -> Option<BTreeSet<String>> {
    let output = Command::new(binary)
        .args(["--list", "--format", "terse"])
        .args(options)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let lines = text.lines().map(|line| line.strip_suffix(": test"));
    let tests: Option<BTreeSet<_>> = lines.map(|line| line.map(str::to_owned)).collect();
    tests.filter(|_| output.status.success())
}
