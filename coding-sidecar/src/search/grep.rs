//! `grep`: finds lines by a regular expression.

use grep_regex::{ErrorKind, RegexMatcher, RegexMatcherBuilder};
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::gather::{Search, search_file, search_tree};
use super::walk::Walk;
use crate::failure::Failure;
use crate::fields::{count, limit, switch};
use crate::truncation::Truncation;
use crate::work::Work;
use crate::workspace::Workspace;

/// The most matching lines if the request has no limit.
const LIMIT_DEFAULT: u64 = 100;
/// The most lines of context before and after a match.
const CONTEXT_MAX: u64 = 100;
/// The most bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 4_096;
/// The most bytes of a compiled pattern. A larger one, such as `(\w{100}){100}`, is refused. The
/// limit bounds the time for one line: each byte may cost a step for each state of the automaton,
/// so `a[ab]{10000}c` takes up to half a minute for the longest line.
const COMPILED_BYTES_MAX: usize = 1024 * 1024;
/// The most bytes of each thread's cache of automaton states.
const CACHE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The deepest nesting of a pattern's syntax tree (groups, repetitions, concatenations), since the
/// compiler of patterns recurses.
const NEST_MAX: u32 = 100;

/// The body of `/grep`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrepRequest {
    /// A regular expression in the syntax of ripgrep or, if `literal` is set, plain text.
    pub pattern: String,
    /// The folder or file to search; the root by default.
    #[serde(default)]
    pub path: Option<String>,
    /// A glob: only files that match it are searched. If it starts with `!`, only files that do not
    /// match the rest of it are searched.
    #[serde(default)]
    pub glob: Option<String>,
    /// Whether the case of letters is ignored.
    #[serde(default, deserialize_with = "switch")]
    pub ignore_case: bool,
    /// Whether `pattern` is plain text.
    #[serde(default, deserialize_with = "switch")]
    pub literal: bool,
    /// The number of lines to show before and after each match; 0 by default.
    #[serde(default, deserialize_with = "count")]
    pub context: Option<u64>,
    /// The number of matching lines after which the search ends: from 1; more than 2,000 counts as
    /// 2,000; 100 by default.
    #[serde(default, deserialize_with = "count")]
    pub limit: Option<u64>,
}

/// The reasons why a [`GrepResult`] is incomplete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GrepDetails {
    /// Present if the bounds of a result cut `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Truncation>,
    /// The limit, if more lines match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_limit_reached: Option<u64>,
    /// True if a line was cut to 500 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_truncated: Option<bool>,
    /// The number of files and folders that were not searched, were searched only in part, or had
    /// ignore files that were too large or too complex to be applied; and the first of them, with
    /// the reason. Binary files below a searched folder do not count. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The result of `/grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GrepResult {
    /// The lines: `path:line: text` for a match, `path-line- text` for context.
    pub content: String,
    /// Present if `content` is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<GrepDetails>,
}

/// Searches the lines of the files below a folder, or of one file.
///
/// Below a folder, leaves out the files that [`super::find`] leaves out, and entries that are not
/// regular files. The search of a file ends at the first NUL byte, which marks a binary file;
/// UTF-16 with a byte order mark is decoded before. The result does not depend on the number of
/// threads.
pub fn grep(
    workspace: &Workspace,
    request: GrepRequest,
    work: &Work,
) -> Result<GrepResult, Failure> {
    work.check()?;
    let context = request.context.unwrap_or(0);
    if context > CONTEXT_MAX {
        return Err(Failure::Request(format!(
            "context is {context} lines, the limit is {CONTEXT_MAX}"
        )));
    }
    let search = Search {
        workspace,
        matcher: matcher(&request)?,
        filter: match &request.glob {
            Some(glob) => Some(Filter::new_negatable(glob, "glob")?),
            None => None,
        },
        context: usize::try_from(context).unwrap_or(usize::MAX),
        limit: limit(request.limit, LIMIT_DEFAULT)?,
        work,
    };
    let path = workspace.path(request.path.as_deref().unwrap_or("."))?;
    let gathered = match workspace.kind(&path)? {
        FileType::Directory => search_tree(&search, Walk::new(workspace, &path)?)?,
        _ => search_file(&search, &path)?,
    };
    let cut = gathered.cut.finish();
    let content = cut.content.clone();
    let details = GrepDetails {
        truncation: cut.if_cut(),
        match_limit_reached: gathered.more_matches.then_some(search.limit as u64),
        lines_truncated: gathered.lines_cut.then_some(true),
        skipped: gathered.skipped.describe(),
    };
    Ok(GrepResult {
        content,
        details: (details != GrepDetails::default()).then_some(details),
    })
}

fn matcher(request: &GrepRequest) -> Result<RegexMatcher, Failure> {
    let pattern = &request.pattern;
    if pattern.is_empty() {
        return Err(Failure::Request("pattern is empty".into()));
    }
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(Failure::Request(format!(
            "pattern is {} bytes long, the limit is {PATTERN_BYTES_MAX}",
            pattern.len()
        )));
    }
    RegexMatcherBuilder::new()
        .case_insensitive(request.ignore_case)
        .fixed_strings(request.literal)
        .multi_line(true)
        .line_terminator(Some(b'\n'))
        .size_limit(COMPILED_BYTES_MAX)
        .dfa_size_limit(CACHE_BYTES_MAX)
        .nest_limit(NEST_MAX)
        .build(pattern)
        .map_err(|error| match error.kind() {
            ErrorKind::NotAllowed(_) => Failure::Request(
                "pattern: grep searches within lines, so a line break matches nothing; search for a part of one line".into(),
            ),
            _ => Failure::Request(format!("pattern: {error}")),
        })
}
