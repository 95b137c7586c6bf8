//! A bundle in OPA's format: policies, data documents and a manifest. The path of a data document
//! in `data` is the path of its directory in the bundle. The roots in the manifest restrict the
//! paths of packages and data documents.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::characters;
use super::error::LoadError;
use super::files::{Files, file_name};
use super::yaml;

/// The contents of a bundle.
#[derive(Debug)]
pub struct Bundle {
    /// Path and text of each policy.
    pub policies: Vec<(String, String)>,
    /// The `data` document.
    pub data: Value,
    /// The manifest; the default if the bundle has none.
    pub manifest: Manifest,
    /// SHA-256 of the files' paths and contents.
    pub digest: [u8; 32],
}

/// The contents of `.manifest`. Other keys, such as those for Wasm modules, are ignored.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// The revision that the author gave the bundle.
    pub revision: String,
    /// Paths that the bundle owns, such as `mcp/authz`. The empty path stands for all of `data`.
    pub roots: Vec<String>,
    /// The version of Rego in which the policies are written: 0 or 1.
    pub rego_version: u8,
    /// Free-form notes of the author.
    pub metadata: Map<String, Value>,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            revision: String::new(),
            roots: vec![String::new()],
            rego_version: 1,
            metadata: Map::new(),
        }
    }
}

impl Bundle {
    /// Reads a directory or an archive. Blocks.
    #[cfg(test)]
    pub fn read(path: &std::path::Path) -> Result<Self, LoadError> {
        Self::of(Files::read(path)?)
    }

    /// Parses the files of a bundle.
    pub fn of(files: Files) -> Result<Self, LoadError> {
        let mut bundle = Self {
            policies: Vec::new(),
            data: Value::Object(Map::new()),
            manifest: Manifest::default(),
            digest: files.digest(),
        };
        for (path, content) in files.content {
            let refuse = |message: String| LoadError::File(path.clone(), message);
            let text = String::from_utf8(content);
            let text = text.map_err(|_| refuse("the file is not UTF-8".to_owned()))?;
            match file_name(&path) {
                ".manifest" => bundle.manifest = manifest(&text).map_err(refuse)?,
                "data.json" => bundle.add_data(&path, json(&text).map_err(refuse)?)?,
                "data.yaml" | "data.yml" => {
                    bundle.add_data(&path, yaml::parse(&text).map_err(refuse)?)?;
                }
                _ => {
                    characters::check(&text).map_err(refuse)?;
                    bundle.policies.push((path, text));
                }
            }
        }
        if bundle.policies.is_empty() {
            return Err(LoadError::Empty);
        }
        bundle.check_data()?;
        Ok(bundle)
    }

    /// Refuses a package outside the roots of the manifest. `path` is the package's path without
    /// `data`.
    pub fn check_package(&self, file: &str, path: &[String]) -> Result<(), LoadError> {
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        if self.roots().any(|root| path.starts_with(&root)) {
            return Ok(());
        }
        Err(self.outside(file, &path))
    }

    /// Merges a document into `data` at the path of its directory.
    fn add_data(&mut self, file: &str, document: Value) -> Result<(), LoadError> {
        let directory = file.rsplit_once('/').map(|(directory, _)| directory);
        let parts = directory.map(|directory| directory.split('/'));
        let whole = parts
            .into_iter()
            .flatten()
            .rev()
            .fold(document, |value, part| {
                Value::Object(Map::from_iter([(part.to_owned(), value)]))
            });
        if !whole.is_object() {
            let message = "data at the root of a bundle must be an object".to_owned();
            return Err(LoadError::File(file.to_owned(), message));
        }
        merge(&mut self.data, whole)
            .map_err(|path| LoadError::File(file.to_owned(), format!("{path} is defined twice")))
    }

    /// Refuses documents outside the roots of the manifest.
    fn check_data(&self) -> Result<(), LoadError> {
        let mut pending = vec![(Vec::new(), &self.data)];
        while let Some((path, value)) = pending.pop() {
            if self.roots().any(|root| path.starts_with(&root)) {
                continue;
            }
            let leads_to_root = self.roots().any(|root| root.starts_with(&path));
            match value {
                Value::Object(members) if leads_to_root => {
                    for (name, member) in members {
                        let path = path.iter().copied().chain([name.as_str()]).collect();
                        pending.push((path, member));
                    }
                }
                _ => return Err(self.outside("data", &path)),
            }
        }
        Ok(())
    }

    fn roots(&self) -> impl Iterator<Item = Vec<&str>> {
        self.manifest.roots.iter().map(|root| segments(root))
    }

    fn outside(&self, file: &str, path: &[&str]) -> LoadError {
        let (path, roots) = (path.join("/"), self.manifest.roots.join(", "));
        let message = format!("{path} is outside the roots of .manifest: {roots}");
        LoadError::File(file.to_owned(), message)
    }
}

/// The names of a path such as `mcp/authz`.
fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

fn manifest(text: &str) -> Result<Manifest, String> {
    let value = json(text)?;
    if !value.is_object() {
        return Err("the manifest is not an object".to_owned());
    }
    let manifest: Manifest = serde_json::from_value(value).map_err(|error| error.to_string())?;
    if manifest.rego_version > 1 {
        return Err(format!(
            "rego_version {} is not 0 or 1",
            manifest.rego_version
        ));
    }
    let mut seen: BTreeSet<Vec<&str>> = BTreeSet::new();
    for root in &manifest.roots {
        let root_segments = segments(root);
        let overlaps = |other: &Vec<&str>| {
            other.starts_with(&root_segments) || root_segments.starts_with(other)
        };
        if seen.iter().any(overlaps) {
            return Err(format!(
                "the root {root:?} overlaps another one; name the shorter path only"
            ));
        }
        seen.insert(root_segments);
    }
    Ok(manifest)
}

/// Parses JSON. Refuses repeated keys, since parsers differ in which of the values counts.
fn json(text: &str) -> Result<Value, String> {
    addons::json::strict::parse(text.as_bytes()).map_err(|error| error.to_string())
}

/// Merges `from` into `into`. Fails with the path of a value that both define.
fn merge(into: &mut Value, from: Value) -> Result<(), String> {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                match into.get_mut(&name) {
                    Some(present) => {
                        merge(present, value).map_err(|path| match path.as_str() {
                            "" => name,
                            below => format!("{name}/{below}"),
                        })?;
                    }
                    None => {
                        into.insert(name, value);
                    }
                }
            }
            Ok(())
        }
        _ => Err(String::new()),
    }
}

#[cfg(test)]
#[path = "tests/bundle.rs"]
mod tests;
