//! One configuration file, parsed and expanded.

use std::fmt::Display;
use std::sync::Arc;

use crate::contract::Origin;

use super::decode::{At, Fields};
use super::expand::{Env, expand};
use super::report::{FileReport, Report};
use super::tree::{self, Node, Place, Value};

/// A configuration file, or what stands for one that is absent.
pub struct Document<'a> {
    name: Arc<str>,
    report: &'a Report,
    content: Content,
}

enum Content {
    Absent,
    /// What is wrong was reported.
    Broken,
    Read(Node),
}

impl<'a> Document<'a> {
    /// Parses a file's bytes. With `env`, variables are expanded.
    pub fn parse(name: &str, bytes: &[u8], env: Option<Env<'_>>, report: &'a Report) -> Self {
        let name: Arc<str> = name.into();
        let file = FileReport {
            file: &name,
            report,
        };
        let content = parse(bytes, env, file);
        Self {
            name,
            report,
            content,
        }
    }

    /// Stands for a file that does not exist: each key has its default.
    pub fn absent(name: &str, report: &'a Report) -> Self {
        Self {
            name: name.into(),
            report,
            content: Content::Absent,
        }
    }

    /// Stands for a file that exists and cannot be read, and reports that.
    pub fn unreadable(name: &str, error: &dyn Display, report: &'a Report) -> Self {
        let document = Self {
            name: name.into(),
            report,
            content: Content::Broken,
        };
        let message = format!("cannot be read: {error}");
        document.report().refuse_file(message);
        document
    }

    /// Whether there is no such file.
    pub fn is_absent(&self) -> bool {
        matches!(self.content, Content::Absent)
    }

    /// Where to complain about it.
    pub fn report(&self) -> FileReport<'_> {
        FileReport {
            file: &self.name,
            report: self.report,
        }
    }

    /// The same as an origin.
    pub fn origin(&self, place: Place) -> Origin {
        Origin {
            file: self.name.clone(),
            line: place.line,
        }
    }

    /// Decodes the keys below `version`; every key is absent where the file is, or is broken.
    pub fn decode<'d, T>(&'d self, read: impl FnOnce(&mut Fields<'d>) -> T) -> T {
        let absent = || Fields::absent(self.report(), String::new());
        match &self.content {
            Content::Read(node) => {
                let fields = At::root(node, self.report()).fields();
                let known = fields.is_some();
                fields.unwrap_or_else(absent).read(|fields| {
                    match fields.find("version") {
                        Some(version) => check_version(&version),
                        None if known => fields.refuse("version", "is missing: write version: 1"),
                        None => {}
                    }
                    read(fields)
                })
            }
            Content::Absent | Content::Broken => absent().read(read),
        }
    }

    /// The root, where the file was read.
    pub fn root(&self) -> Option<At<'_>> {
        match &self.content {
            Content::Read(node) => Some(At::root(node, self.report())),
            Content::Absent | Content::Broken => None,
        }
    }
}

/// There is one version so far.
pub fn check_version(version: &At<'_>) {
    const WRONG: &str = "must be 1, the only version there is";
    if version.plain(WRONG).is_some_and(|text| text != "1") {
        version.refuse(WRONG);
    }
}

fn parse(bytes: &[u8], env: Option<Env<'_>>, report: FileReport<'_>) -> Content {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let place = end_of(bytes.get(..error.valid_up_to()).unwrap_or_default());
            report.refuse(place, "", "is not UTF-8");
            return Content::Broken;
        }
    };
    let Ok(root) = tree::parse(text, report) else {
        return Content::Broken;
    };
    // An empty document is one without keys: it lacks its version and is told so.
    let mut root = root.unwrap_or(Node {
        place: Place { line: 1, column: 1 },
        value: Value::Mapping(Vec::new()),
    });
    if let Some(env) = env {
        expand(&mut root, "", env, report);
    }
    Content::Read(root)
}

/// The place behind a valid text.
fn end_of(text: &[u8]) -> Place {
    let lines = text.split(|byte| *byte == b'\n');
    let last = lines.clone().next_back().unwrap_or_default();
    Place {
        line: lines.count(),
        column: String::from_utf8_lossy(last).chars().count() + 1,
    }
}
