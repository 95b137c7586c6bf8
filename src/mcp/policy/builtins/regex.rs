//! Regular expressions, as in Go's package `regexp`.

use regex::{Captures, escape};
use regorus::Value;

use super::pattern::{Pattern, go_regex};
use super::{Outcome, Stop, check_time, integer, string};

pub fn is_valid(pattern: &Value) -> Outcome {
    let result = string(pattern).and_then(go_regex);
    match result {
        Ok(_) => Ok(Value::from(true)),
        Err(Stop::Undefined) => Ok(Value::from(false)),
        Err(error) => Err(error),
    }
}

pub fn matches(pattern: &Value, text: &Value) -> Outcome {
    let text = string(text)?;
    let pattern = go_regex(string(pattern)?)?;
    Ok(Value::from(pattern.regex.is_match(text)))
}

/// Matches a text with a template: the parts between delimiters are regular expressions.
pub fn template_match(template: &Value, text: &Value, start: &Value, end: &Value) -> Outcome {
    let (template, text) = (string(template)?, string(text)?);
    let delimiter = |value| match string(value)?.as_bytes() {
        [byte] => Ok(char::from(*byte)),
        _ => Err(Stop::Undefined),
    };
    let (start, end) = (delimiter(start)?, delimiter(end)?);
    let (mut whole, mut part) = (String::from("^"), String::new());
    let mut level = 0_usize;
    for c in template.chars() {
        if c == start {
            level += 1;
            if level > 1 {
                part.push(c);
            } else {
                whole.push_str(&escape(&std::mem::take(&mut part)));
            }
        } else if c == end {
            level = level.checked_sub(1).ok_or(Stop::Undefined)?;
            if level > 0 {
                part.push(c);
            } else {
                check_time()?;
                let expression = std::mem::take(&mut part);
                go_regex(&format!("^{expression}$"))?;
                whole.push_str(&format!("({expression})"));
            }
        } else {
            part.push(c);
        }
    }
    if level > 0 {
        return Err(Stop::Undefined);
    }
    whole.push_str(&escape(&part));
    whole.push('$');
    Ok(Value::from(go_regex(&whole)?.regex.is_match(text)))
}

/// Calls `each` with the first `limit` matches, from left to right. Checks the clock between two
/// matches: each of them may take time in proportion to the rest of the text.
fn for_each_match(
    pattern: &Pattern,
    text: &str,
    limit: i64,
    mut each: impl FnMut(Captures<'_>),
) -> Result<(), Stop> {
    // A negative limit is none.
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    for captures in pattern.regex.captures_iter(text).take(limit) {
        check_time()?;
        each(captures);
    }
    Ok(())
}

fn matched<'a>(captures: &Captures<'a>, group: usize) -> &'a str {
    captures.get(group).map_or("", |found| found.as_str())
}

pub fn find_n(pattern: &Value, text: &Value, limit: &Value) -> Outcome {
    let (text, limit) = (string(text)?, integer(limit)?);
    let pattern = go_regex(string(pattern)?)?;
    let mut found = Vec::new();
    for_each_match(&pattern, text, limit, |captures| {
        found.push(Value::from(matched(&captures, 0)));
    })?;
    Ok(Value::from(found))
}

pub fn find_all_string_submatch_n(pattern: &Value, text: &Value, limit: &Value) -> Outcome {
    let (text, limit) = (string(text)?, integer(limit)?);
    let pattern = go_regex(string(pattern)?)?;
    let mut found = Vec::new();
    for_each_match(&pattern, text, limit, |captures| {
        let groups = (0..captures.len()).map(|group| Value::from(matched(&captures, group)));
        found.push(Value::from(groups.collect::<Vec<_>>()));
    })?;
    Ok(Value::from(found))
}

pub fn split(pattern: &Value, text: &Value) -> Outcome {
    let (pattern, text) = (string(pattern)?, string(text)?);
    let compiled = go_regex(pattern)?;
    if text.is_empty() && !pattern.is_empty() {
        return Ok(Value::from(vec![Value::from("")]));
    }
    let (mut parts, mut begin, mut end) = (Vec::new(), 0, 0);
    for_each_match(&compiled, text, -1, |captures| {
        if let Some(found) = captures.get(0) {
            end = found.start();
            // Go drops what is in front of an empty match at the beginning.
            if found.end() != 0 {
                parts.push(Value::from(text.get(begin..end).unwrap_or_default()));
            }
            begin = found.end();
        }
    })?;
    if end != text.len() {
        parts.push(Value::from(text.get(begin..).unwrap_or_default()));
    }
    Ok(Value::from(parts))
}

/// Replaces as Go's `ReplaceAllString`. Some versions of OPA search the text behind a match as a text
/// of its own, where `^` matches again and an empty match has no end.
pub fn replace(text: &Value, pattern: &Value, template: &Value) -> Outcome {
    let (text, template) = (string(text)?, string(template)?);
    let pattern = go_regex(string(pattern)?)?;
    let (mut replaced, mut begin) = (String::new(), 0);
    for_each_match(&pattern, text, -1, |captures| {
        if let Some(found) = captures.get(0) {
            replaced.push_str(text.get(begin..found.start()).unwrap_or_default());
            expand(&mut replaced, template, &pattern, &captures);
            begin = found.end();
        }
    })?;
    replaced.push_str(text.get(begin..).unwrap_or_default());
    Ok(Value::from(replaced))
}

/// Appends a template with the groups of a match in place of `$1`, `$name` and `${name}`.
fn expand(text: &mut String, template: &str, pattern: &Pattern, captures: &Captures<'_>) {
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('$') {
        text.push_str(before);
        rest = behind;
        if let Some(behind) = rest.strip_prefix('$') {
            text.push('$');
            rest = behind;
        } else if let Some((name, behind)) = group_name(rest) {
            let number = match name.parse::<usize>() {
                // A number with a zero in front is a name, and no group has it.
                Ok(number) if name == number.to_string() => Some(number),
                _ => pattern
                    .names
                    .iter()
                    .position(|other| other == name)
                    .map(|at| at + 1),
            };
            text.push_str(number.map_or("", |number| matched(captures, number)));
            rest = behind;
        } else {
            text.push('$');
        }
    }
    text.push_str(rest);
}

/// The name of a group at the beginning of a text, and the rest of the text.
fn group_name(text: &str) -> Option<(&str, &str)> {
    let (inner, is_braced) = match text.strip_prefix('{') {
        Some(inner) => (inner, true),
        None => (text, false),
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let end = inner.find(|c| !is_word(c)).unwrap_or(inner.len());
    let (name, rest) = inner.split_at_checked(end)?;
    let rest = if is_braced {
        rest.strip_prefix('}')?
    } else {
        rest
    };
    (!name.is_empty()).then_some((name, rest))
}
