//! The unified diff of one replacement.

use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use memchr::{memchr, memchr_iter, memrchr};
use similar::{ChangeTag, DiffOp, TextDiff};

use crate::truncation::HeadCut;

/// The number of lines of context before and after a change.
const CONTEXT_LINES: usize = 3;
/// The most bytes of both texts together for a comparison line by line. A diff of larger texts
/// removes every old line and adds every new line.
const COMPARED_BYTES_MAX: usize = 256 * 1024;
/// The time limit of the comparison. Beyond it, the diff is valid, but may not be minimal.
const COMPARE_TIME: Duration = Duration::from_millis(500);
/// The most lines of a diff.
const LINES_MAX: usize = 1_000;

/// The unified diff between `text` and the text in which `new` replaces `range`.
///
/// Compares only the lines around `range`, so that the cost of the comparison does not depend on
/// the rest of the file. The diff is cut at [`LINES_MAX`] lines or at the number of bytes that
/// bounds every result; the last line of a cut diff says how many lines were left out.
pub(super) fn unified_diff(path: &str, text: &[u8], range: Range<usize>, new: &[u8]) -> String {
    let start = lines_before(text, range.start);
    let end = lines_after(text, range.end);
    let slice = |range: Range<usize>| text.get(range).unwrap_or_default();
    let old_part = String::from_utf8_lossy(slice(start..end)).into_owned();
    let new_part = [slice(start..range.start), new, slice(range.end..end)].concat();
    let new_part = String::from_utf8_lossy(&new_part).into_owned();
    let first_line = memchr_iter(b'\n', slice(0..start)).count();

    let mut cut = HeadCut::new(LINES_MAX);
    cut.take_line(&format!("--- {path}"));
    cut.take_line(&format!("+++ {path}"));
    if old_part.len().saturating_add(new_part.len()) > COMPARED_BYTES_MAX {
        replaced_whole(&mut cut, &old_part, &new_part, first_line);
    } else {
        compared(&mut cut, &old_part, &new_part, first_line);
    }
    let cut = cut.finish();
    let mut diff = cut.content;
    if cut.truncated {
        let rest = cut.total_lines.saturating_sub(cut.output_lines);
        // A partial line does not end with a newline.
        let newline = if diff.ends_with('\n') { "" } else { "\n" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            diff,
            "{newline}[{rest} more lines of the diff are not shown]"
        );
    }
    diff
}

fn compared(cut: &mut HeadCut, old: &str, new: &str, first_line: usize) {
    let diff = TextDiff::configure()
        .timeout(COMPARE_TIME)
        .diff_lines(old, new);
    for group in diff.grouped_ops(CONTEXT_LINES) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let old_lines = first.old_range().start..last.old_range().end;
        let new_lines = first.new_range().start..last.new_range().end;
        cut.take_line(&hunk_header(old_lines, new_lines, first_line));
        for change in group.iter().flat_map(|op: &DiffOp| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => "-",
                ChangeTag::Insert => "+",
                ChangeTag::Equal => " ",
            };
            take_changed(cut, sign, change.value());
        }
    }
}

fn replaced_whole(cut: &mut HeadCut, old: &str, new: &str, first_line: usize) {
    let lines = |text: &str| text.split_inclusive('\n').count();
    cut.take_line(&hunk_header(0..lines(old), 0..lines(new), first_line));
    for (sign, text) in [("-", old), ("+", new)] {
        for line in text.split_inclusive('\n') {
            take_changed(cut, sign, line);
        }
    }
}

fn take_changed(cut: &mut HeadCut, sign: &str, line: &str) {
    cut.take(sign.as_bytes());
    cut.take(line.as_bytes());
    if !line.ends_with('\n') {
        cut.take(b"\n\\ No newline at end of file\n");
    }
}

/// Formats `@@ -start,count +start,count @@`. The start of an empty side is the line before it, and
/// a count of 1 is left out.
fn hunk_header(old: Range<usize>, new: Range<usize>, first_line: usize) -> String {
    let side = |lines: Range<usize>| {
        let start = first_line.saturating_add(lines.start);
        match lines.len() {
            0 => format!("{start},0"),
            1 => start.saturating_add(1).to_string(),
            count => format!("{},{count}", start.saturating_add(1)),
        }
    };
    format!("@@ -{} +{} @@", side(old), side(new))
}

/// The offset at which the context before `position` begins.
fn lines_before(text: &[u8], position: usize) -> usize {
    let mut start = position;
    for _ in 0..=CONTEXT_LINES {
        let before = text.get(..start).unwrap_or_default();
        match memrchr(b'\n', before) {
            Some(newline) => start = newline,
            None => return 0,
        }
    }
    start.saturating_add(1)
}

/// The offset at which the context after `position` ends.
fn lines_after(text: &[u8], position: usize) -> usize {
    let mut end = position;
    for _ in 0..=CONTEXT_LINES {
        let after = text.get(end..).unwrap_or_default();
        match memchr(b'\n', after) {
            Some(newline) => end = end.saturating_add(newline).saturating_add(1),
            None => return text.len(),
        }
    }
    end
}
