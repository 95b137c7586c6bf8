//! Translates results of operations to results of tools.

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::bash::Ended;
use super::operation::Operation;
use super::tail::{Tail, Truncation};

/// The result of `read`.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ReadResult {
    #[serde(rename_all = "camelCase")]
    Text {
        content: String,
        total_lines: u64,
        #[serde(default)]
        has_more: bool,
        truncation: Option<Truncation>,
    },
    #[serde(rename_all = "camelCase")]
    Image { data: String, mime_type: String },
}

#[derive(Deserialize)]
struct WriteResult {
    path: String,
    bytes: u64,
}

#[derive(Deserialize)]
struct EditResult {
    path: String,
    diff: String,
}

#[derive(Deserialize)]
struct LsResult {
    output: String,
    truncation: Option<Truncation>,
}

#[derive(Deserialize)]
struct FindResult {
    files: Vec<String>,
    #[serde(default)]
    truncated: bool,
    #[serde(default)]
    limit: u64,
    truncation: Option<Truncation>,
    /// A sentence about folders that could not be read.
    skipped: Option<String>,
}

#[derive(Deserialize)]
struct GrepResult {
    content: String,
    details: Option<GrepDetails>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GrepDetails {
    truncation: Option<Truncation>,
    /// A number or a boolean; null if it is absent.
    match_limit_reached: Value,
    lines_truncated: bool,
    /// A sentence about files and folders that could not be read.
    skipped: Option<String>,
}

/// The result of an operation that failed, with the sidecar's reason.
pub fn failed(sentence: &str) -> Option<Box<RawValue>> {
    written(sentence, None, true)
}

/// The result of a command. The last line of the text is the exit code, if the sidecar reported
/// one. The result is an error if the time limit ended the command, or the sidecar could not run it
/// to its end.
pub fn of_bash(output: Tail, ended: Result<Ended, String>) -> Option<Box<RawValue>> {
    let (output, cut) = output.finish();
    let mut notes = Vec::new();
    if cut.truncated {
        notes.push(kept_end(&cut));
    }
    let Ended {
        exit_code,
        timed_out,
    } = match ended {
        Ok(ended) => ended,
        Err(sentence) => {
            notes.push(sentence);
            return written(&noted(&output, &notes), None, true);
        }
    };
    if timed_out {
        notes.push("[timed out: the command and all its processes were killed]".to_owned());
    }
    if let Some(code) = exit_code {
        notes.push(format!("[exit code {code}]"));
    }
    let mut details = json!({ "output": output, "exitCode": exit_code, "timedOut": timed_out });
    if let (true, Some(details)) = (cut.truncated, details.as_object_mut()) {
        details.insert("truncation".to_owned(), json!(cut));
    }
    written(&noted(&output, &notes), Some(details), timed_out)
}

fn kept_end(cut: &Truncation) -> String {
    let Truncation {
        output_lines,
        total_lines,
        output_bytes,
        total_bytes,
        ..
    } = cut;
    match cut.last_line_partial {
        true => format!("[the last {output_bytes} of {total_bytes} bytes, within one line]"),
        false => format!("[the last {output_lines} of {total_lines} lines]"),
    }
}

/// The result of an operation other than `bash`; `None` if `result` does not have the form of this
/// operation's results. `arguments` are the arguments of the call, as JSON.
pub fn of(operation: Operation, arguments: &str, result: &RawValue) -> Option<Box<RawValue>> {
    let text = result.get();
    match operation {
        // `of_bash` translates the stream of a command.
        Operation::Bash => None,
        Operation::Read => read(arguments, serde_json::from_str(text).ok()?),
        Operation::Write => {
            let WriteResult { path, bytes } = serde_json::from_str(text).ok()?;
            let details = json!({ "path": path, "bytes": bytes });
            let message = format!("Wrote {bytes} bytes to {path}.");
            written(&message, Some(details), false)
        }
        Operation::Edit => {
            let EditResult { path, diff } = serde_json::from_str(text).ok()?;
            let message = format!("Edited {path}.\n\n{diff}");
            let details = json!({ "path": path, "diff": diff });
            written(&message, Some(details), false)
        }
        Operation::Ls => {
            let ls: LsResult = serde_json::from_str(text).ok()?;
            let notes: Vec<_> = ls
                .truncation
                .as_ref()
                .and_then(kept_beginning)
                .into_iter()
                .collect();
            let output = or_nothing(&ls.output, "The folder is empty.");
            written(&noted(output, &notes), None, false)
        }
        Operation::Find => find(serde_json::from_str(text).ok()?),
        Operation::Grep => grep(serde_json::from_str(text).ok()?),
    }
}

fn read(arguments: &str, result: ReadResult) -> Option<Box<RawValue>> {
    let (content, total, has_more, truncation) = match result {
        ReadResult::Image { data, mime_type } => {
            if !mime_type.starts_with("image/") {
                return None;
            }
            let content = json!({ "type": "image", "data": data, "mimeType": mime_type });
            return to_raw_value(&json!({ "content": [content], "isError": false })).ok();
        }
        ReadResult::Text {
            content,
            total_lines,
            has_more,
            truncation,
        } => (content, total_lines, has_more, truncation),
    };
    #[derive(Default, Deserialize)]
    struct Range {
        offset: Option<f64>,
        limit: Option<f64>,
    }
    let range: Range = serde_json::from_str(arguments).unwrap_or_default();
    // The sidecar accepts `10.0` as 10.
    let whole = |float: f64| format!("{float:.0}").parse::<u64>().ok();
    let first = range.offset.and_then(whole).unwrap_or(1).max(1);
    let cut = truncation.filter(|cut| cut.truncated);
    let note = match &cut {
        Some(cut) if cut.first_line_exceeds_limit => Some(format!(
            "[the beginning of line {first}, which has more than {} bytes: read on with bash, sed and cut]",
            cut.max_bytes
        )),
        Some(cut) => Some(read_on(first, cut.output_lines, total)),
        None if has_more => {
            let lines = range
                .limit
                .and_then(whole)
                .unwrap_or_else(|| content.lines().count() as u64);
            Some(read_on(first, lines, total))
        }
        None => None,
    };
    let notes: Vec<_> = note.into_iter().collect();
    written(&noted(&content, &notes), None, false)
}

fn read_on(first: u64, lines: u64, total: u64) -> String {
    let next = first.saturating_add(lines);
    let last = next.saturating_sub(1);
    format!("[lines {first} to {last} of {total}: read on with offset {next}]")
}

fn find(found: FindResult) -> Option<Box<RawValue>> {
    let FindResult {
        files,
        truncated,
        limit,
        truncation,
        skipped,
    } = found;
    let mut notes = Vec::new();
    let cut = truncation.filter(|cut| cut.truncated);
    if truncated || cut.is_some() {
        let count = files.len();
        notes.push(match cut {
            Some(Truncation { max_bytes, .. }) => format!(
                "[only the first {count} files: a result holds at most {max_bytes} bytes; name a folder or a narrower pattern]"
            ),
            None => format!("[only the first {count} files: the limit is {limit}]"),
        });
    }
    notes.extend(skipped.map(|skipped| format!("[{skipped}]")));
    let text = files.join("\n");
    let text = noted(or_nothing(&text, "No file was found."), &notes);
    let details = json!({ "files": files, "truncated": truncated });
    written(&text, Some(details), false)
}

fn grep(found: GrepResult) -> Option<Box<RawValue>> {
    let details = found.details.unwrap_or_default();
    let mut notes = Vec::new();
    let is_limited = match &details.match_limit_reached {
        Value::Bool(reached) => *reached,
        other => other.is_number(),
    };
    if is_limited {
        notes.push("[there are more matches: the limit is reached]".to_owned());
    }
    if details.lines_truncated {
        notes.push("[lines of more than 500 characters were cut]".to_owned());
    }
    notes.extend(details.truncation.as_ref().and_then(kept_beginning));
    let is_whole = details.skipped.is_none();
    notes.extend(details.skipped.map(|skipped| format!("[{skipped}]")));
    let nothing = match is_whole {
        true => "No line matches.",
        false => "No line matches in the searched files.",
    };
    let content = or_nothing(&found.content, nothing);
    written(&noted(content, &notes), None, false)
}

fn kept_beginning(cut: &Truncation) -> Option<String> {
    let (lines, total) = (cut.output_lines, cut.total_lines);
    cut.truncated
        .then(|| format!("[the first {lines} of {total} lines]"))
}

fn or_nothing<'t>(text: &'t str, nothing: &'t str) -> &'t str {
    if text.is_empty() { nothing } else { text }
}

/// Appends notes to a text, each on a separate line.
fn noted(text: &str, notes: &[String]) -> String {
    let end = match (notes, text) {
        ([], _) => return text.to_owned(),
        (_, "") => "",
        (_, text) if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    format!("{text}{end}{}", notes.join("\n"))
}

fn written(text: &str, structured: Option<Value>, is_error: bool) -> Option<Box<RawValue>> {
    let mut result = json!({ "content": [{ "type": "text", "text": text }], "isError": is_error });
    if let (Some(structured), Some(result)) = (structured, result.as_object_mut()) {
        result.insert("structuredContent".to_owned(), structured);
    }
    to_raw_value(&result).ok()
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    /// The text of a result, given the arguments of the call.
    fn shown(operation: Operation, arguments: &str, result: Value) -> String {
        let result = to_raw_value(&result).unwrap();
        let shown = of(operation, arguments, &result).unwrap();
        let shown: Value = serde_json::from_str(shown.get()).unwrap();
        shown["content"][0]["text"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_truncated_list_of_files_names_the_limit() {
        let cut = json!({ "truncated": true, "truncatedBy": "bytes", "maxBytes": 51_200 });
        each_row(
            [
                (json!(null), "[only the first 1 files: the limit is 1000]"),
                (
                    cut,
                    "[only the first 1 files: a result holds at most 51200 bytes; name a folder or a narrower pattern]",
                ),
            ],
            |(truncation, note)| {
                let found = json!({
                    "files": ["a"], "truncated": true, "limit": 1000, "truncation": truncation,
                });
                assert_eq!(shown(Operation::Find, "{}", found), format!("a\n\n{note}"));
            },
        );
    }

    #[test]
    fn a_search_without_matches_says_whether_files_were_skipped() {
        let whole = json!({ "content": "" });
        assert_eq!(shown(Operation::Grep, "{}", whole), "No line matches.");
        let part = json!({ "content": "", "details": { "skipped": "not searched: a" } });
        assert_eq!(
            shown(Operation::Grep, "{}", part),
            "No line matches in the searched files.\n\n[not searched: a]"
        );
    }

    #[test]
    fn offset_and_limit_may_be_floats_without_a_fraction() {
        let read = json!({ "type": "text", "content": "b\n", "totalLines": 3, "hasMore": true });
        assert_eq!(
            shown(
                Operation::Read,
                r#"{"path":"a","offset":2.0,"limit":1.0}"#,
                read
            ),
            "b\n\n[lines 2 to 2 of 3: read on with offset 3]"
        );
    }
}
