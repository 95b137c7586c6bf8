//! The crate decides and does nothing else: what could reach the world is not among its
//! dependencies, at any depth.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeSet, HashMap};
use std::process::Command;

use serde_json::Value;

/// What opens sockets, speaks protocols or keeps databases.
const ENGINE: [&str; 14] = [
    "hyper",
    "hyper-util",
    "rustls",
    "tokio-rustls",
    "hickory-proto",
    "hickory-resolver",
    "hickory-server",
    "rusqlite",
    "libsqlite3-sys",
    "socket2",
    "mio",
    "reqwest",
    "axum",
    "rcgen",
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Whether a resolved dependency is compiled into the crate itself: not only into its tests.
fn is_normal(dependency: &Value) -> bool {
    list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null())
}

#[test]
fn addons_depend_on_nothing_that_reaches_the_world() {
    let metadata = metadata();
    let packages: HashMap<_, _> = list(&metadata["packages"])
        .map(|package| (text(&package["id"]), package))
        .collect();
    let nodes: HashMap<_, _> = list(&metadata["resolve"]["nodes"])
        .map(|node| (text(&node["id"]), node))
        .collect();
    let (id, _) = packages
        .iter()
        .find(|(_, p)| p["name"] == "addons")
        .unwrap();

    let mut reached = BTreeSet::new();
    let mut next = vec![*id];
    while let Some(id) = next.pop() {
        if reached.insert(id) {
            let dependencies = list(&nodes[id]["deps"]).filter(|d| is_normal(d));
            next.extend(dependencies.map(|d| text(&d["pkg"])));
        }
    }
    let names: BTreeSet<_> = reached
        .iter()
        .map(|id| text(&packages[id]["name"]))
        .collect();
    assert!(
        names.contains("tokio") && names.contains("http"),
        "{names:?}"
    );

    // The engine asks tokio for `net`, and features are unified over the workspace: so mio and
    // socket2 hang on tokio there. What counts is that nobody here asks for it.
    let behind_tokio = ["mio", "socket2"];
    let found: Vec<_> = names
        .iter()
        .filter(|name| ENGINE.contains(name) && !behind_tokio.contains(name))
        .collect();
    assert!(found.is_empty(), "addons must not depend on {found:?}");
    for id in &reached {
        for dependency in list(&packages[id]["dependencies"]) {
            let asks = |feature: &str| list(&dependency["features"]).any(|f| f == feature);
            let name = text(&dependency["name"]);
            let normal = dependency["kind"].is_null() && dependency["optional"] == false;
            let direct_socket = behind_tokio.contains(&name);
            let for_net = name == "tokio" && (asks("net") || asks("full"));
            assert!(
                !(normal && (direct_socket || for_net)),
                "{} asks for sockets by {name}",
                packages[id]["name"]
            );
        }
    }
}
