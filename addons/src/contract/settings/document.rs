//! One configuration file, parsed and expanded.

use std::fmt::Display;
use std::sync::Arc;

use super::expand::{Env, expand};
use super::fields::{self, Fields};
use super::jsonc::without_comments;
use super::report::{FileReport, Place, Report};
use super::setting::Setting;
use super::tree::{self, Mapping, Node, Value};

/// A configuration file: absent, broken or read.
pub struct Document<'a> {
    name: Arc<str>,
    report: &'a Report,
    content: Content,
}

enum Content {
    Absent,
    /// An error was reported.
    Broken,
    Read(Node),
}

impl<'a> Document<'a> {
    /// Parses a file's bytes. With `env`, variables are expanded.
    pub fn parse(name: &str, bytes: &[u8], env: Option<Env<'_>>, report: &'a Report) -> Self {
        let mut document = Self::absent(name, report);
        document.content = parse(bytes, env, document.report());
        document
    }

    /// The document of a file that does not exist: every key is absent.
    pub fn absent(name: &str, report: &'a Report) -> Self {
        Self {
            name: name.into(),
            report,
            content: Content::Absent,
        }
    }

    /// The document of a file that exists but cannot be read. Reports the error.
    pub fn unreadable(name: &str, error: &dyn Display, report: &'a Report) -> Self {
        let mut document = Self::absent(name, report);
        document.content = Content::Broken;
        document
            .report()
            .refuse_file(format!("cannot be read: {error}"));
        document
    }

    /// Whether the file does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self.content, Content::Absent)
    }

    /// The report for errors of this file.
    pub fn report(&self) -> FileReport<'_> {
        FileReport {
            file: &self.name,
            report: self.report,
        }
    }

    /// The top-level keys, after checking `version`. If the file is absent or broken, every key is
    /// absent.
    pub fn fields(&self) -> Fields<'_> {
        let fields = self.root().and_then(|root| root.fields());
        let fields = fields.unwrap_or_else(|| Fields::absent(self.report(), String::new()));
        match fields.find("version") {
            Some(version) => check_version(&version),
            None if fields.is_present() => {
                fields.refuse("version", "is missing: write version: 1");
            }
            None => {}
        }
        fields
    }

    /// The root of the tree; `None` if the file is absent or broken.
    pub fn root(&self) -> Option<Setting<'_>> {
        match &self.content {
            Content::Read(node) => Some(Setting {
                node,
                path: String::new(),
                report: self.report(),
            }),
            Content::Absent | Content::Broken => None,
        }
    }

    /// Reports the keys that no reader claimed. Call it after all readers.
    pub fn refuse_unknown_keys(&self) {
        if let Content::Read(node) = &self.content {
            fields::refuse_unknown_keys(node, "", self.report());
        }
    }
}

/// Reports an error for every version except 1.
pub fn check_version(version: &Setting<'_>) {
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
    let json = without_comments(text);
    let text = json.as_deref().map_or(text, String::as_str);
    let Ok(root) = tree::parse(text, report) else {
        return Content::Broken;
    };
    // An empty document is read as an empty mapping, so that its missing version is reported.
    let mut root = root.unwrap_or(Node {
        place: Place { line: 1, column: 1 },
        value: Value::Mapping(Mapping::default()),
    });
    if let Some(env) = env {
        expand(&mut root, env, report);
    }
    Content::Read(root)
}

/// The place after the last character of `text`.
fn end_of(text: &[u8]) -> Place {
    let lines = text.split(|byte| *byte == b'\n');
    let last = lines.clone().next_back().unwrap_or_default();
    Place {
        line: lines.count(),
        column: String::from_utf8_lossy(last).chars().count() + 1,
    }
}
