//! Strings. Positions and lengths count characters.

use std::collections::HashSet;

use regorus::Value;

use super::{Outcome, Stop, elements, integer, object, occurrences, string, unsupported};

pub fn lower(text: &Value) -> Outcome {
    Ok(Value::from(to_lower(string(text)?)))
}

/// Maps each character to one character, unlike [`str::to_lowercase`].
pub fn to_lower(text: &str) -> String {
    let lower = |c: char| match c {
        'İ' => 'i',
        _ => c.to_lowercase().next().unwrap_or(c),
    };
    text.chars().map(lower).collect()
}

pub fn upper(text: &Value) -> Outcome {
    let upper = |c: char| {
        let mut mapped = c.to_uppercase();
        match (mapped.next(), mapped.next()) {
            (Some(upper), None) => upper,
            // Unicode maps these characters to one character or to several.
            _ => match c {
                '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => {
                    char::from_u32(u32::from(c) + 8).unwrap_or(c)
                }
                '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => {
                    char::from_u32(u32::from(c) + 9).unwrap_or(c)
                }
                _ => c,
            },
        }
    };
    Ok(Value::from(
        string(text)?.chars().map(upper).collect::<String>(),
    ))
}

pub fn indexof(text: &Value, part: &Value) -> Outcome {
    let (text, part) = (string(text)?, string(part)?);
    if part.is_empty() {
        return Err(Stop::Undefined);
    }
    Ok(match text.split_once(part) {
        Some((before, _)) => Value::from(before.chars().count()),
        None => Value::from(-1),
    })
}

pub fn indexof_n(text: &Value, part: &Value) -> Outcome {
    let characters = |text| Ok(string(text)?.chars().collect::<Vec<_>>());
    let (text, part) = (characters(text)?, characters(part)?);
    if part.is_empty() {
        return Err(Stop::Undefined);
    }
    let positions = occurrences(&text, &part).into_iter().map(Value::from);
    Ok(positions.collect::<Vec<_>>().into())
}

pub fn count(text: &Value, part: &Value) -> Outcome {
    let (text, part) = (string(text)?, string(part)?);
    Ok(Value::from(text.matches(part).count()))
}

pub fn substring(text: &Value, offset: &Value, length: &Value) -> Outcome {
    let (text, length) = (string(text)?, integer(length)?);
    let offset = usize::try_from(integer(offset)?).map_err(|_| Stop::Undefined)?;
    // A negative length goes to the end.
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let part = text.chars().skip(offset).take(length);
    Ok(Value::from(part.collect::<String>()))
}

pub fn trim(text: &Value, characters: &Value) -> Outcome {
    let set: HashSet<char> = string(characters)?.chars().collect();
    Ok(Value::from(
        string(text)?.trim_matches(|c| set.contains(&c)),
    ))
}

pub fn trim_left(text: &Value, characters: &Value) -> Outcome {
    let set: HashSet<char> = string(characters)?.chars().collect();
    Ok(Value::from(
        string(text)?.trim_start_matches(|c| set.contains(&c)),
    ))
}

pub fn trim_right(text: &Value, characters: &Value) -> Outcome {
    let set: HashSet<char> = string(characters)?.chars().collect();
    Ok(Value::from(
        string(text)?.trim_end_matches(|c| set.contains(&c)),
    ))
}

pub fn any_prefix_match(texts: &Value, prefixes: &Value) -> Outcome {
    let (mut texts, prefixes) = (strings(texts)?, strings(prefixes)?);
    texts.sort_unstable();
    Ok(Value::from(any_starts_with(&texts, &prefixes)))
}

pub fn any_suffix_match(texts: &Value, suffixes: &Value) -> Outcome {
    let reversed = |texts: &Value| {
        let texts = strings(texts)?.into_iter();
        Ok(texts.map(|text| text.chars().rev().collect()).collect())
    };
    let mut texts: Vec<String> = reversed(texts)?;
    let suffixes: Vec<String> = reversed(suffixes)?;
    texts.sort_unstable();
    Ok(Value::from(any_starts_with(&texts, &suffixes)))
}

/// A string, or the strings of a list.
fn strings(value: &Value) -> Result<Vec<&str>, Stop> {
    match value {
        Value::String(text) => Ok(vec![text]),
        _ => elements(value)?.into_iter().map(string).collect(),
    }
}

/// Whether one of the sorted texts begins with one of the prefixes.
fn any_starts_with<T: AsRef<str>>(sorted: &[T], prefixes: &[T]) -> bool {
    prefixes.iter().map(AsRef::as_ref).any(|prefix| {
        // Texts with a prefix follow the texts that are less than the prefix.
        let first = sorted.partition_point(|text| text.as_ref() < prefix);
        sorted
            .get(first)
            .is_some_and(|text| text.as_ref().starts_with(prefix))
    })
}

pub fn replace(text: &Value, old: &Value, new: &Value) -> Outcome {
    let (text, old, new) = (string(text)?, string(old)?, string(new)?);
    match old.is_empty() {
        true => replace_pairs(text, &[(old, new)]),
        false => Ok(Value::from(text.replace(old, new))),
    }
}

pub fn replace_n(patterns: &Value, text: &Value) -> Outcome {
    let pairs = object(patterns)?.iter_sorted();
    let pairs: Result<Vec<_>, _> = pairs
        .map(|(old, new)| Ok((string(old)?, string(new)?)))
        .collect();
    replace_pairs(string(text)?, &pairs?)
}

/// Replaces from left to right, at each position the first of the pairs that matches, as Go's
/// `strings.Replacer` does.
fn replace_pairs(text: &str, pairs: &[(&str, &str)]) -> Outcome {
    let has_empty = pairs.iter().any(|(old, _)| old.is_empty());
    let (mut rest, mut after_empty) = (text, false);
    let mut replaced = String::new();
    loop {
        let mut matching = pairs.iter().filter_map(|(old, new)| {
            let rest = rest.strip_prefix(old)?;
            (!old.is_empty() || !after_empty).then_some((old.is_empty(), new, rest))
        });
        if let Some((is_empty, new, behind)) = matching.next() {
            replaced.push_str(new);
            (rest, after_empty) = (behind, is_empty);
            continue;
        }
        let mut characters = rest.chars();
        let Some(next) = characters.next() else {
            return Ok(Value::from(replaced));
        };
        if has_empty && !next.is_ascii() {
            // Go inserts between the bytes of a character.
            return unsupported("an empty string is replaced in a text that is not ASCII");
        }
        replaced.push(next);
        (rest, after_empty) = (characters.as_str(), false);
    }
}

/// Does nothing: the traces of policies are not collected.
pub fn trace(note: &Value) -> Outcome {
    string(note).map(|_| Value::from(true))
}
