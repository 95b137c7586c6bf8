//! Checks that the tables of building blocks in ARCHITECTURE.md name exactly the crates under
//! `[dependencies]` and `[dev-dependencies]` of the manifests, and that `src` uses every crate
//! under `[dependencies]`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

/// The folders of the product's crates.
const CRATES: [&str; 3] = ["", "addons/", "coding-sidecar/"];

/// Crates of this workspace, which the tables leave out.
const OWN: [&str; 2] = ["addons", "testkit"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The text after the line `heading`, up to the next line that begins with `next`.
fn section<'t>(text: &'t str, heading: &str, next: &str) -> &'t str {
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).unwrap();
    rest.split(&format!("\n{next}")).next().unwrap()
}

/// The crates in one section of a manifest.
fn dependencies(manifest: &str, heading: &str) -> BTreeSet<String> {
    let name = Regex::new(r"(?m)^[\w-]+").unwrap();
    name.find_iter(section(manifest, heading, "["))
        .map(|name| name.as_str().to_owned())
        .filter(|name| !OWN.contains(&name.as_str()))
        .collect()
}

/// The crates in the tables of building blocks. The last column has the reason. The column before
/// it names the crates; text in parentheses, which says where a crate is used, is left out.
fn explained(document: &str) -> BTreeSet<String> {
    let name = Regex::new(r"[a-z][\w-]*").unwrap();
    let aside = Regex::new(r"\(.*?\)").unwrap();
    let tables = section(document, "## Building blocks", "## ");
    let rows = tables.split("\n\n").flat_map(|table| table.lines().skip(2));
    rows.filter_map(|row| row.rsplit('|').nth(2))
        .flat_map(|cell| {
            let cell = aside.replace_all(cell, "");
            let names = name.find_iter(&cell).map(|name| name.as_str().to_owned());
            names.collect::<Vec<_>>()
        })
        .collect()
}

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// The crates whose names begin no path in `text`.
fn unused(crates: BTreeSet<String>, text: &str) -> Vec<String> {
    let begins = |name: &String| {
        let path = format!(r"(^|[^\w:]|[^:]:|\W::){}::", name.replace('-', "_"));
        Regex::new(&path).unwrap().is_match(text)
    };
    crates.into_iter().filter(|name| !begins(name)).collect()
}

#[test]
fn the_architecture_explains_exactly_the_crates_of_the_manifests() {
    let mut needed = BTreeSet::new();
    for folder in CRATES {
        let manifest = read(&format!("{folder}Cargo.toml"));
        for heading in ["[dependencies]", "[dev-dependencies]"] {
            needed.append(&mut dependencies(&manifest, heading));
        }
    }
    let explained = explained(&read("ARCHITECTURE.md"));
    let differences: Vec<_> = explained.symmetric_difference(&needed).collect();
    assert!(
        differences.is_empty(),
        "only in the manifests, or only in the building blocks of ARCHITECTURE.md: {differences:?}"
    );
}

#[test]
fn src_uses_every_crate_of_the_dependencies() {
    for folder in CRATES {
        let manifest = read(&format!("{folder}Cargo.toml"));
        let mut text = String::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        sources(&root.join("src"), &mut text);
        let unused = unused(dependencies(&manifest, "[dependencies]"), &text);
        assert!(unused.is_empty(), "{folder}Cargo.toml: {unused:?}");
    }
}

#[test]
fn crates_are_read_from_both_tables_and_unused_crates_are_found() {
    let document = "\n## Building blocks\n\n| part | made with | why |\n| --- | --- | --- |\n\
        | x | tokio, http | y |\n\n| crate | reason |\n| --- | --- |\n| clap (tests) | z |\n\n## End";
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(explained(document), names(&["tokio", "http", "clap"]));
    let text = "use tokio::time::Sleep; fn f(_: ::http::Uri) {}";
    let crates = names(&["tokio", "http", "time", "clap"]);
    assert_eq!(unused(crates, text), ["clap", "time"]);
}
