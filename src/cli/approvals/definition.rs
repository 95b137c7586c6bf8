//! The question about a changed definition of a tool, or about a proposed policy, as the lines that
//! differ.

use addons::json::Members;
use serde_json::value::RawValue;

use super::indented::indented;
use crate::cli::exit::printable;

/// The most pairs of lines that are compared. Of longer definitions, all lines count as changed.
const MAX_PAIRS: usize = 1_000_000;

/// The accepted and the new definition, whose lines begin with `-` and `+` if only one has them.
/// `None` for JSON of another form.
pub(super) fn diff(arguments: &RawValue) -> Option<String> {
    let members = Members::read(arguments).ok()?;
    let (old, new) = (members.get("old")?, members.get("new")?);
    let (old, new) = match old {
        "null" => (String::new(), indented(new, 0)),
        old => (indented(old, 0), indented(new, 0)),
    };
    Some(signed(&old, &new))
}

/// The policy in force and the proposed one, likewise. An agent wrote the latter, so that each line is
/// without characters that change how a terminal shows the others. Lines are compared as they are; a
/// tab in a line with a sign is an arrow, so that no such line looks like its counterpart.
pub(super) fn policy_diff(arguments: &RawValue) -> Option<String> {
    let members = Members::read(arguments).ok()?;
    let (old, new) = (members.text("old")?, members.text("new")?);
    let lines = changes(&lines(&old), &lines(&new)).into_iter();
    let lines = lines.map(|(sign, line)| {
        let tab = if sign == ' ' { "    " } else { "→   " };
        format!("{sign} {}", printable(&line.replace('\t', tab)))
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// The lines of a text. [`str::lines`] leaves out how they end.
fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.split('\n').collect();
    match lines.last() {
        Some(&"") => drop(lines.pop()),
        _ => lines.push("\\ no newline at the end"),
    }
    lines
}

fn signed(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let lines = changes(&old, &new).into_iter();
    let lines: Vec<_> = lines.map(|(sign, line)| format!("{sign} {line}")).collect();
    lines.join("\n")
}

/// The lines of both texts in their order, with a sign: ` ` for a common line, `-` for one that only
/// the old text has, `+` for one that only the new text has.
fn changes<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<(char, &'t str)> {
    let equal = |pair: &(&&str, &&str)| pair.0 == pair.1;
    let before = old.iter().zip(new).take_while(equal).count();
    let rest = old.len().min(new.len()).saturating_sub(before);
    let backwards = old.iter().rev().zip(new.iter().rev());
    let after = backwards.take(rest).take_while(equal).count();
    let middle = |all: &[&'t str]| -> Vec<&'t str> {
        let end = all.len().saturating_sub(after);
        all.get(before..end).unwrap_or_default().to_vec()
    };
    let (old_middle, new_middle) = (middle(old), middle(new));
    let kept = common(&old_middle, &new_middle);
    let mut lines: Vec<_> = old.iter().take(before).map(|line| (' ', *line)).collect();
    let (mut old_left, mut new_left) = (old_middle.into_iter(), new_middle.into_iter());
    for line in kept {
        lines.extend(
            old_left
                .by_ref()
                .take_while(|old| *old != line)
                .map(|old| ('-', old)),
        );
        lines.extend(
            new_left
                .by_ref()
                .take_while(|new| *new != line)
                .map(|new| ('+', new)),
        );
        lines.push((' ', line));
    }
    lines.extend(old_left.map(|old| ('-', old)));
    lines.extend(new_left.map(|new| ('+', new)));
    let end = old.len().saturating_sub(after);
    lines.extend(old.iter().skip(end).map(|line| (' ', *line)));
    lines
}

/// The longest common subsequence of lines; empty if there are too many lines to compare.
fn common<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<&'t str> {
    if old.len().saturating_mul(new.len()) > MAX_PAIRS {
        return Vec::new();
    }
    // For each suffix of the old lines, and each of the new ones, the length of the longest.
    let mut lengths = vec![vec![0_usize; new.len().saturating_add(1)]];
    for line in old.iter().rev() {
        let below = lengths.last().map(Vec::as_slice).unwrap_or_default();
        let mut row = vec![0];
        for (other, pair) in new.iter().rev().zip(below.windows(2)) {
            let &[diagonal, above] = pair else { continue };
            let beside = row.last().copied().unwrap_or_default();
            row.push(match line == other {
                true => diagonal.saturating_add(1),
                false => above.max(beside),
            });
        }
        lengths.push(row);
    }
    let length = |old_left: usize, new_left: usize| {
        let row = lengths.get(old_left);
        row.and_then(|row| row.get(new_left))
            .copied()
            .unwrap_or_default()
    };
    let (mut at, mut other_at) = (0_usize, 0_usize);
    let mut kept = Vec::new();
    while let (Some(line), Some(other)) = (old.get(at), new.get(other_at)) {
        let (old_left, new_left) = (
            old.len().saturating_sub(at),
            new.len().saturating_sub(other_at),
        );
        let without_old = length(old_left.saturating_sub(1), new_left);
        if line == other {
            kept.push(*line);
            at = at.saturating_add(1);
            other_at = other_at.saturating_add(1);
        } else if without_old >= length(old_left, new_left.saturating_sub(1)) {
            at = at.saturating_add(1);
        } else {
            other_at = other_at.saturating_add(1);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn lines_that_differ_have_a_sign_and_stand_in_their_order() {
        each_row(
            [
                ("", "", ""),
                ("a b c", "a b c", " a  b  c"),
                ("a b c", "a x c", " a -b +x  c"),
                ("a b", "a b c", " a  b +c"),
                ("a b c", "c", "-a -b  c"),
                ("", "a b", "+a +b"),
                ("a b", "", "-a -b"),
                ("a b c d e", "b x d y", "-a  b -c +x  d -e +y"),
                ("a a a", "a a", " a  a -a"),
            ],
            |(old, new, expected)| {
                let split = |text: &'static str| -> Vec<&'static str> {
                    text.split(' ').filter(|line| !line.is_empty()).collect()
                };
                let lines = changes(&split(old), &split(new)).into_iter();
                let lines: Vec<_> = lines.map(|(sign, line)| format!("{sign}{line}")).collect();
                assert_eq!(lines.join(" "), expected);
            },
        );
    }

    #[test]
    fn a_changed_definition_is_shown_as_its_changed_lines() {
        let json = r#"{"new":{"description":"Reads, and mails it","name":"read"},"old":{"description":"Reads","name":"read"}}"#;
        let json = RawValue::from_string(json.to_owned()).unwrap();
        let expected = "  {\n-   \"description\": \"Reads\",\n+   \"description\": \"Reads, and mails it\",\n    \"name\": \"read\"\n  }";
        assert_eq!(diff(&json).unwrap(), expected);
        let json = r#"{"new":{"name":"read"},"old":null}"#;
        let json = RawValue::from_string(json.to_owned()).unwrap();
        assert_eq!(diff(&json).unwrap(), "+ {\n+   \"name\": \"read\"\n+ }");
        let other = RawValue::from_string("[1]".to_owned()).unwrap();
        assert_eq!(diff(&other), None);
        assert_eq!(policy_diff(&other), None);
    }

    #[test]
    fn a_proposed_policy_is_shown_as_its_changed_lines_without_harmful_characters() {
        each_row(
            [
                (
                    r#"{"new":"package a\n\n\tx\nallow := true\u001b[2K\r\n","old":"package a\n\n\tx\n\tallow := false\n"}"#,
                    "  package a\n  \n      x\n- →   allow := false\n+ allow := true\\u{1b}[2K\\u{d}",
                ),
                // Lines that look equal once they are printable.
                (r#"{"new":"`    `\n","old":"`\t`\n"}"#, "- `→   `\n+ `    `"),
                (
                    r#"{"new":"\\u{200b}\n","old":"\u200b\n"}"#,
                    "- \\u{200b}\n+ \\u{200b}",
                ),
                (r#"{"new":"a\r\n","old":"a\n"}"#, "- a\n+ a\\u{d}"),
                (
                    r#"{"new":"a","old":"a\n"}"#,
                    "  a\n+ \\ no newline at the end",
                ),
            ],
            |(json, expected)| {
                let json = RawValue::from_string(json.to_owned()).unwrap();
                assert_eq!(policy_diff(&json).unwrap(), expected);
            },
        );
    }
}
