//! Reads a list page by page. The part of a list beyond a bound is left out.

use std::time::Duration;

use addons::contract::RpcError;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::MountError;
use crate::mcp::error::METHOD_NOT_FOUND;
use crate::mcp::message::present;
use crate::mcp::warnings::{Subject, deviates, excerpt, warn};

/// The most pages of one list that are read.
const MAX_PAGES: usize = 100;
/// The most entries of one list that are kept.
const MAX_ENTRIES: usize = 10_000;
/// The most bytes of one list that are kept.
const MAX_BYTES: usize = 16 << 20;
/// Memory of an entry besides its text, in bytes.
const ENTRY_OVERHEAD: usize = 512;
/// The longest cursor, in bytes.
const MAX_CURSOR: usize = 4096;

/// A kind of list that servers provide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

/// The capability of a list.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Declared {
    pub list_changed: bool,
}

#[derive(Deserialize)]
struct Capabilities {
    tools: Option<Declared>,
    prompts: Option<Declared>,
    resources: Option<Declared>,
}

impl Kind {
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// The capability of the list; `None` if the server lacks it.
    pub fn declared_by(self, capabilities: &RawValue) -> Option<Declared> {
        let declared: Capabilities = serde_json::from_str(capabilities.get()).ok()?;
        match self {
            Self::Tools => declared.tools,
            Self::Prompts => declared.prompts,
            Self::Resources | Self::Templates => declared.resources,
        }
    }

    /// Whether an error means that the list is empty. A server with the capability `resources` may
    /// implement only one of the two lists, resources or templates.
    pub fn may_be_missing(self, error: &RpcError) -> bool {
        error.code == METHOD_NOT_FOUND && matches!(self, Self::Resources | Self::Templates)
    }
}

/// One page. Its members are read later, since those of some servers have other types.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    prompts: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    resources: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    resource_templates: Option<&'a RawValue>,
    next_cursor: Option<Value>,
    ttl_ms: Option<Value>,
}

/// The cursor for the next page; `None` at the end. A number counts, since the server gets it back
/// as it is.
fn next_cursor(server: &str, cursor: Option<Value>) -> Option<Value> {
    let cursor = cursor?;
    let is_end = match &cursor {
        Value::String(text) if !text.is_empty() => return Some(cursor),
        Value::Number(_) => false,
        _ => true,
    };
    deviates(
        server,
        "the cursor of a list is not a text, or an empty one",
    );
    (!is_end).then_some(cursor)
}

/// The pages of a list that were read so far.
#[derive(Default)]
pub(super) struct Pages {
    pub entries: Vec<Box<RawValue>>,
    bytes: usize,
    pages: usize,
    cursor: Option<Value>,
    age: Option<Duration>,
}

impl Pages {
    /// The params of the request for the next page; `None` if there is neither a cursor nor `meta`.
    pub fn params(&self, meta: Option<&Value>) -> Option<Box<RawValue>> {
        let mut params = Map::new();
        if let Some(cursor) = &self.cursor {
            params.insert("cursor".to_owned(), cursor.clone());
        }
        if let Some(meta) = meta {
            params.insert("_meta".to_owned(), meta.clone());
        }
        (!params.is_empty()).then(|| to_raw_value(&params).ok())?
    }

    /// Whether an error may be the answer to a cursor that is no text: the server may not mean it
    /// as one. The list then ends.
    pub fn may_have_ended(&self) -> bool {
        self.cursor.as_ref().is_some_and(Value::is_number)
    }

    /// How long the list is fresh: the shortest `ttlMs` of its pages. A page without `ttlMs` counts
    /// as zero.
    pub fn age(&self) -> Duration {
        self.age.unwrap_or_default()
    }

    /// The memory that the entries take, in bytes.
    pub fn size(&self) -> usize {
        let overhead = self.entries.len().saturating_mul(ENTRY_OVERHEAD);
        self.bytes.saturating_add(overhead)
    }

    /// Adds a page. Returns whether to request another one: `false` after the last page, if the
    /// list exceeds a bound, or if the server repeats the last cursor. Fails if the result is not a
    /// page of this kind.
    pub fn add(&mut self, kind: Kind, result: &RawValue, server: &str) -> Result<bool, MountError> {
        let no_list = |error: serde_json::Error| {
            MountError::Protocol(format!(
                "{}: the server's answer is not a list: {}",
                kind.method(),
                // The error may quote a text of any length.
                excerpt(&error.to_string())
            ))
        };
        let page: Page<'_> = serde_json::from_str(result.get()).map_err(no_list)?;
        let entries = match kind {
            Kind::Tools => page.tools,
            Kind::Prompts => page.prompts,
            Kind::Resources => page.resources,
            Kind::Templates => page.resource_templates,
        };
        let entries = entries.ok_or_else(|| {
            MountError::Protocol(format!(
                "{}: the server's answer has no list",
                kind.method()
            ))
        })?;
        let entries: Option<Vec<Box<RawValue>>> =
            serde_json::from_str(entries.get()).map_err(no_list)?;
        let entries = entries.unwrap_or_else(|| {
            deviates(server, "an empty list is null");
            Vec::new()
        });
        self.pages += 1;
        let millis = page.ttl_ms.and_then(|millis| millis.as_f64());
        let age = Duration::from_millis(millis.unwrap_or_default().max(0.0) as u64);
        self.age = Some(self.age.map_or(age, |before| before.min(age)));
        for entry in entries {
            self.bytes = self.bytes.saturating_add(entry.get().len());
            if self.bytes > MAX_BYTES || self.entries.len() == MAX_ENTRIES {
                return Ok(cut(kind, server));
            }
            self.entries.push(entry);
        }
        let Some(next) = next_cursor(server, page.next_cursor) else {
            return Ok(false);
        };
        let is_long = next.as_str().is_some_and(|text| text.len() > MAX_CURSOR);
        if self.pages == MAX_PAGES || is_long || self.cursor.as_ref() == Some(&next) {
            return Ok(cut(kind, server));
        }
        self.cursor = Some(next);
        Ok(true)
    }
}

fn cut(kind: Kind, server: &str) -> bool {
    warn(server, Subject::List, |left_out| {
        tracing::warn!(
            server,
            left_out,
            method = kind.method(),
            "the end of an MCP server's list is left out: the list exceeds {MAX_PAGES} pages, \
             {MAX_ENTRIES} entries or {MAX_BYTES} bytes, or its cursor repeats or exceeds \
             {MAX_CURSOR} bytes"
        );
    });
    false
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn pages_are_followed_until_there_is_no_cursor() {
        let mut pages = Pages::default();
        assert!(pages.params(None).is_none());
        let first = raw(r#"{"tools":[{"name":"a"}],"nextCursor":"2","ttlMs":5000}"#);
        assert!(pages.add(Kind::Tools, &first, "kb").unwrap());
        let params = pages.params(None).unwrap();
        assert_eq!(params.get(), r#"{"cursor":"2"}"#);
        let last = raw(r#"{"tools":[{"name":"b"}],"ttlMs":9000}"#);
        assert!(!pages.add(Kind::Tools, &last, "kb").unwrap());
        assert_eq!(pages.entries.len(), 2);
        assert_eq!(pages.age(), Duration::from_secs(5));
    }

    #[test]
    fn a_list_ends_at_a_limit_or_a_repeated_cursor() {
        let mut pages = Pages::default();
        let same = raw(r#"{"tools":[],"nextCursor":"1"}"#);
        assert!(pages.add(Kind::Tools, &same, "kb").unwrap());
        assert!(
            !pages.add(Kind::Tools, &same, "kb").unwrap(),
            "the cursor repeats"
        );
        let mut pages = Pages::default();
        let mut count = 1;
        while pages
            .add(
                Kind::Tools,
                &raw(&format!(r#"{{"tools":[],"nextCursor":"{count}"}}"#)),
                "kb",
            )
            .unwrap()
        {
            count += 1;
        }
        assert_eq!(count, MAX_PAGES);
        let mut pages = Pages::default();
        let many = vec!["{}"; MAX_ENTRIES + 1].join(",");
        let many = raw(&format!(r#"{{"tools":[{many}],"nextCursor":"1"}}"#));
        assert!(!pages.add(Kind::Tools, &many, "kb").unwrap());
        assert_eq!(pages.entries.len(), MAX_ENTRIES);
        let mut pages = Pages::default();
        let long = format!("\"{}\"", "x".repeat(MAX_BYTES / 2));
        let long = raw(&format!(r#"{{"tools":[{long},{long}],"nextCursor":"1"}}"#));
        assert!(!pages.add(Kind::Tools, &long, "kb").unwrap());
        assert_eq!(pages.entries.len(), 1);
    }

    #[test]
    fn a_list_is_read_although_its_members_have_other_types() {
        // The page, the number of its entries, and the params of the request for the next page.
        each_row(
            [
                (
                    r#"{"tools":[{}],"nextCursor":1}"#,
                    1,
                    Some(r#"{"cursor":1}"#),
                ),
                (
                    r#"{"tools":[{}],"nextCursor":-2.5}"#,
                    1,
                    Some(r#"{"cursor":-2.5}"#),
                ),
                (
                    r#"{"tools":[{}],"nextCursor":"2"}"#,
                    1,
                    Some(r#"{"cursor":"2"}"#),
                ),
                (r#"{"tools":[{}],"nextCursor":""}"#, 1, None),
                (r#"{"tools":[{}],"nextCursor":null}"#, 1, None),
                (r#"{"tools":[{}],"nextCursor":false}"#, 1, None),
                (r#"{"tools":[{}],"nextCursor":{"at":1}}"#, 1, None),
                (r#"{"tools":[{}],"ttlMs":"600","prompts":1}"#, 1, None),
                (r#"{"tools":null}"#, 0, None),
            ],
            |(page, count, next)| {
                let mut pages = Pages::default();
                let goes_on = pages.add(Kind::Tools, &raw(page), "kb").unwrap();
                assert_eq!(
                    (pages.entries.len(), goes_on),
                    (count, next.is_some()),
                    "{page}"
                );
                let params = pages.params(None);
                assert_eq!(params.as_deref().map(RawValue::get), next, "{page}");
            },
        );
        each_row(
            ["{}", "null", r#"{"tools":{}}"#, r#"{"tools":"a"}"#],
            |page| {
                let added = Pages::default().add(Kind::Tools, &raw(page), "kb");
                assert!(added.is_err(), "{page}");
            },
        );
    }

    #[test]
    fn a_list_is_declared_by_its_capability() {
        let capabilities = raw(r#"{"tools":{"listChanged":true},"resources":{}}"#);
        let declared = |kind: Kind| kind.declared_by(&capabilities);
        assert_eq!(declared(Kind::Tools), Some(Declared { list_changed: true }));
        assert_eq!(declared(Kind::Templates), Some(Declared::default()));
        assert_eq!(declared(Kind::Prompts), None);
    }
}
