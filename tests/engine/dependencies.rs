//! Every dependency is in ARCHITECTURE.md, with a reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The text after the line `heading`, up to the next line that begins with `next`.
fn section<'t>(text: &'t str, heading: &str, next: &str) -> &'t str {
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).unwrap();
    rest.split(&format!("\n{next}")).next().unwrap()
}

/// The crates in the `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let name = Regex::new(r"(?m)^[\w-]+").unwrap();
    name.find_iter(section(manifest, "[dependencies]", "["))
        .map(|name| name.as_str().to_owned())
        .collect()
}

/// The crates in the tables of building blocks, which are named in the last column but one, before
/// the reason.
fn explained(document: &str) -> BTreeSet<String> {
    let name = Regex::new(r"[a-z][\w-]*").unwrap();
    section(document, "## Building blocks", "## ")
        .lines()
        .filter_map(|line| line.rsplit('|').nth(2))
        .flat_map(|crates| name.find_iter(crates))
        .map(|name| name.as_str().to_owned())
        .collect()
}

#[test]
fn every_dependency_is_explained_in_the_architecture() {
    let explained = explained(&read("ARCHITECTURE.md"));
    for manifest in [
        "Cargo.toml",
        "addons/Cargo.toml",
        "coding-sidecar/Cargo.toml",
    ] {
        let mut dependencies = dependencies(&read(manifest));
        assert!(dependencies.len() > 10, "{manifest}: {dependencies:?}");
        dependencies.remove("addons");
        let missing: Vec<_> = dependencies.difference(&explained).collect();
        assert!(
            missing.is_empty(),
            "{manifest}: ARCHITECTURE.md gives no reason for {missing:?}"
        );
    }
}
