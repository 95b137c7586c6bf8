//! Globs, as `gobwas/glob` of Go documents them. Version 0.2.3 of that package matches some patterns
//! otherwise, such as `?` with an empty text; OPA's tests expect the documented result.

use std::iter::Peekable;
use std::str::Chars;

use regorus::Value;

use super::go::push_literal;
use super::pattern::compiled;
use super::{Outcome, Stop, string, unsupported};

pub fn matches(pattern: &Value, delimiters: &Value, text: &Value) -> Outcome {
    let (pattern, text) = (string(pattern)?, string(text)?);
    let delimiters = match delimiters {
        Value::Null => String::new(),
        Value::Array(list) if list.is_empty() => ".".to_owned(),
        Value::Array(list) => list.iter().map(delimiter).collect::<Result<_, _>>()?,
        _ => return Err(Stop::Undefined),
    };
    let key = format!("g{delimiters}\0{pattern}");
    let pattern = compiled(key, || Ok((translate(pattern, &delimiters)?, Vec::new())))?;
    Ok(Value::from(pattern.regex.is_match(text)))
}

fn delimiter(value: &Value) -> Result<char, Stop> {
    let mut characters = string(value)?.chars();
    match (characters.next(), characters.next()) {
        (Some(delimiter), None) => Ok(delimiter),
        _ => Err(Stop::Undefined),
    }
}

pub fn quote_meta(text: &Value) -> Outcome {
    let mut quoted = String::new();
    for c in string(text)?.chars() {
        if matches!(c, '*' | '?' | '\\' | '[' | ']' | '{' | '}') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    Ok(Value::from(quoted))
}

/// Translates a glob to a regular expression.
fn translate(pattern: &str, delimiters: &str) -> Result<String, Stop> {
    if pattern.contains('\0') {
        return unsupported("gobwas/glob ends a pattern at some zeros, and skips others");
    }
    if pattern.contains(char::REPLACEMENT_CHARACTER) {
        // gobwas/glob takes it for an invalid byte.
        return Err(Stop::Undefined);
    }
    let mut single = String::from(".");
    if !delimiters.is_empty() {
        single = String::from("[^");
        delimiters
            .chars()
            .for_each(|c| push_literal(&mut single, c));
        single.push(']');
    }
    let mut regex = String::from(r"\A(?s:");
    let mut depth = 0_usize;
    let mut characters = pattern.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '*' if characters.next_if_eq(&'*').is_some() => regex.push_str(".*"),
            '*' => {
                regex.push_str(&single);
                regex.push('*');
            }
            '?' => regex.push_str(&single),
            '[' => push_class(&mut regex, &mut characters)?,
            '{' => {
                depth += 1;
                regex.push_str("(?:");
            }
            ',' if depth > 0 => regex.push('|'),
            '}' if depth > 0 => {
                depth -= 1;
                regex.push(')');
            }
            // A backslash at the end is ignored.
            '\\' => characters
                .next()
                .into_iter()
                .for_each(|c| push_literal(&mut regex, c)),
            _ => push_literal(&mut regex, c),
        }
    }
    // The end of a pattern closes its lists.
    regex.extend(std::iter::repeat_n(')', depth));
    regex.push_str(r")\z");
    Ok(regex)
}

/// Translates a range or a list of characters, from behind the bracket. Undefined if it is neither.
fn push_class(regex: &mut String, characters: &mut Peekable<Chars<'_>>) -> Result<(), Stop> {
    regex.push('[');
    if characters.next_if_eq(&'!').is_some() {
        regex.push('^');
    }
    let first = characters.next().ok_or(Stop::Undefined)?;
    if characters.next_if_eq(&'-').is_some() {
        match (characters.next(), characters.next()) {
            (Some(last), Some(']')) if first <= last => {
                push_literal(regex, first);
                regex.push('-');
                push_literal(regex, last);
            }
            _ => return Err(Stop::Undefined),
        }
    } else {
        let (mut next, mut is_empty) = (first, true);
        while next != ']' {
            if next == '\\' {
                next = characters.next().ok_or(Stop::Undefined)?;
            }
            push_literal(regex, next);
            is_empty = false;
            next = characters.next().ok_or(Stop::Undefined)?;
        }
        if is_empty {
            return Err(Stop::Undefined);
        }
    }
    regex.push(']');
    Ok(())
}
