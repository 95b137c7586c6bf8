//! What the appliance is installed from: the image, compose files, units, the Debian package, and the
//! Kubernetes example.
//!
//! No container engine and no cluster runs here. The files are read for what they must say; what they
//! start is started by other means: the image's root in namespaces of the test's own, the registrar's script
//! before a real proxy, the seccomp profile on a real process.

mod compose;
mod debian;
mod image;
mod kubernetes;
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

/// Where a program is that not every machine has.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    let found = found.find(|file| file.is_file());
    if found.is_none() {
        crate::support::left_out("wire", name, "it is not installed");
    }
    found
}

/// Runs it to its end; the exit code, and stdout with stderr.
fn run(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

/// The texts of a sequence.
fn texts(value: &Value) -> BTreeSet<&str> {
    let items = value.as_array().into_iter().flatten();
    items.map(|item| item.as_str().unwrap()).collect()
}

/// Fails where a mapping has a key that is not known there.
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
