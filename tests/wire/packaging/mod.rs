//! Checks the files that install the appliance: the image, compose files, the systemd unit, the
//! Debian package, the seccomp profile, the Kubernetes example, and the compose example of an MCP gateway.
//!
//! These tests need no container engine and no cluster. They check the contents of the files, run
//! the binary with only the image's files in new namespaces, run the registrar's script with a real
//! proxy, and apply the seccomp profile to a process. The tests of `tests/e2e` use the images and the
//! compose files in an engine.

mod compose;
mod debian;
mod image;
mod kubernetes;
mod mcp_gateway;
mod seccomp;
mod systemd;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The path of a program on PATH. `None` if it is missing; then the summary that `scripts/test`
/// prints says so.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    let found = found.find(|file| file.is_file());
    if found.is_none() {
        crate::support::left_out("wire", name, "it is not installed");
    }
    found
}

/// Runs a command to its end. Returns its exit code, or -1 after a signal, and its standard output
/// followed by its standard error.
fn run(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

/// The set of the strings in a sequence; empty for any other value.
fn texts(value: &Value) -> BTreeSet<&str> {
    let items = value.as_array().into_iter().flatten();
    items.map(|item| item.as_str().unwrap()).collect()
}

/// Panics if a mapping has a key that is not in `known`.
fn assert_known(place: &str, value: &Value, known: &[&str]) {
    let keys = value
        .as_object()
        .unwrap_or_else(|| panic!("{place}: {value}"));
    let unknown: Vec<_> = keys
        .keys()
        .filter(|key| !known.contains(&key.as_str()))
        .collect();
    assert!(unknown.is_empty(), "{place}: {unknown:?}");
}
