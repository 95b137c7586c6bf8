//! JSON on several lines.

use crate::runtime::printable_json;

/// Indents JSON that has no white space between its values, from this column on. The values stay as
/// they are: a number that is read and written again could become another one.
pub(super) fn indented(json: &str, column: usize) -> String {
    let mut text = String::new();
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut before = None;
    for c in json.chars() {
        let is_empty = matches!((before, c), (Some('{'), '}') | (Some('['), ']'));
        let opened = !in_string && matches!(before, Some('{' | '[')) && !is_empty;
        let closes = !in_string && matches!(c, '}' | ']');
        if closes {
            depth = depth.saturating_sub(1);
        }
        if opened || (closes && !is_empty) || (!in_string && before == Some(',')) {
            text.push_str(&format!("\n{:width$}", "", width = column + 2 * depth));
        }
        text.push(c);
        if in_string {
            in_string = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            // What is within a text opens and separates nothing.
            before = None;
            continue;
        }
        match c {
            '"' => in_string = true,
            ':' => text.push(' '),
            '{' | '[' => depth = depth.saturating_add(1),
            _ => {}
        }
        before = Some(c);
    }
    let lines: Vec<_> = text.lines().map(printable_json).collect();
    lines.join("\n")
}
