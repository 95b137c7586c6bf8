//! `grep`: lines by a regular expression.

use grep_regex::{ErrorKind, RegexMatcher, RegexMatcherBuilder};
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::gather::{Search, search_file, search_tree};
use super::limit;
use super::walk::Walk;
use crate::failure::Failure;
use crate::fields::{count, switch};
use crate::truncation::Truncation;
use crate::work::Work;
use crate::workspace::Workspace;

/// Matching lines where the request names no limit.
const LIMIT_DEFAULT: u64 = 100;
/// Most lines of context before and after a match.
const CONTEXT_MAX: u64 = 100;
/// Most bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 4_096;
/// Most bytes of the compiled pattern, which is what `(\\w{100}){100}` runs into. Each byte of a
/// line may cost a step for each state: `a[ab]{10000}c` takes up to half a minute for the longest line.
const COMPILED_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of each thread's cache of automaton states.
const CACHE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Groups in groups; the parser recurses.
const NEST_MAX: u32 = 100;

/// The body of `/grep`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrepRequest {
    /// A regular expression in the syntax of ripgrep, or a text where `literal` is set.
    pub pattern: String,
    /// The folder or file to search; the root where absent.
    #[serde(default)]
    pub path: Option<String>,
    /// Only files that match this glob; those that do not where it begins with `!`.
    #[serde(default)]
    pub glob: Option<String>,
    /// Whether upper and lower case are the same.
    #[serde(default, deserialize_with = "switch")]
    pub ignore_case: bool,
    /// Whether `pattern` is plain text.
    #[serde(default, deserialize_with = "switch")]
    pub literal: bool,
    /// Lines to show before and after each match.
    #[serde(default, deserialize_with = "count")]
    pub context: Option<u64>,
    /// Most matching lines; 100 where absent.
    #[serde(default, deserialize_with = "count")]
    pub limit: Option<u64>,
}

/// What is to be known about an incomplete [`GrepResult`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GrepDetails {
    /// Present when the bounds of an answer cut `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Truncation>,
    /// The limit, when more lines match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_limit_reached: Option<u64>,
    /// True when a line was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_truncated: Option<bool>,
    /// Present when files or folders could not be searched: how many, and the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The result of `/grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GrepResult {
    /// `path:line: text` for a match, `path-line- text` for its context.
    pub content: String,
    /// Present when `content` is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<GrepDetails>,
}

/// Searches the lines of the files below a folder, or of one file.
///
/// Files are chosen as [`super::find`] does; those with a NUL byte are binary and left out. The result
/// does not depend on how many threads search.
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
