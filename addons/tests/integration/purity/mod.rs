//! Checks that the crate `addons` only decides. No dependency at any depth opens a socket,
//! implements a protocol or keeps a database. The sources of the crate use no file, socket,
//! process, thread or task of the standard library and tokio.

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use testkit::each_row;

/// Prefixes of the names of crates that open sockets, implement protocols or keep databases.
const ENGINE: [&str; 12] = [
    "hyper",
    "rustls",
    "tokio-rustls",
    "hickory",
    "rusqlite",
    "libsqlite3",
    "socket2",
    "mio",
    "reqwest",
    "axum",
    "rcgen",
    "unified-proxy",
];

/// The crates that `addons` depends on, each with its features when `addons` is built alone.
///
/// `cargo tree` needs only the packages of a build for this machine. `cargo metadata` would need
/// the dependencies for all platforms and of all members, which a fresh machine has not downloaded.
fn compiled_in() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package=addons", "--edges=normal"])
        .args(["--prefix=none", "--no-dedupe", "--format={p}\t{f}"])
        .args(["--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (package, features) = line.split_once('\t').unwrap();
        let name = package.split(' ').next().unwrap();
        let features = features.split(',').filter(|feature| !feature.is_empty());
        let known = crates.entry(name.to_owned()).or_default();
        known.extend(features.map(str::to_owned));
    }
    crates
}

#[test]
fn addons_depend_on_no_crate_that_does_io() {
    let crates = compiled_in();
    each_row(["addons", "tokio", "http"], |expected| {
        assert!(crates.contains_key(expected), "no {expected} in {crates:?}");
    });
    let found: Vec<_> = crates
        .keys()
        .filter(|name| ENGINE.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    assert!(found.is_empty(), "addons must not depend on {found:?}");

    let of_tokio = &crates["tokio"];
    assert!(of_tokio.contains("time"), "features of tokio: {of_tokio:?}");
    each_row(
        ["net", "fs", "process", "signal", "rt", "full"],
        |feature| {
            assert!(
                !of_tokio.contains(feature),
                "addons must not compile tokio with `{feature}`: {of_tokio:?}"
            );
        },
    );
}
