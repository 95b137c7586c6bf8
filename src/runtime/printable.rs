//! Text for terminals and logs.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes control characters, invisible characters and characters that change the direction of
/// text, so that text from a container or a server can neither control the terminal, nor disguise
/// itself, nor begin another line of a log.
pub(crate) fn printable(text: &str) -> String {
    printable_with(text, |harmful, clean| {
        clean.extend(harmful.escape_unicode())
    })
    .into_owned()
}

/// Escapes the same characters in each line. Tabs become spaces.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines = text.split('\n');
    let lines = lines.map(|line| printable(&line.replace('\t', "    ")));
    lines.collect::<Vec<_>>().join("\n")
}

/// Escapes the same characters within JSON text, where they can be only in strings.
pub(crate) fn printable_json(text: &str) -> Cow<'_, str> {
    printable_with(text, |harmful, clean| {
        for unit in harmful.encode_utf16(&mut [0; 2]) {
            let _ = write!(clean, "\\u{unit:04x}");
        }
    })
}

fn printable_with(text: &str, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return text.into();
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_harmful(c) {
            true => escape(c, &mut clean),
            false => clean.push(c),
        }
    }
    clean.into()
}

/// Whether a character is invisible, controls a terminal, or changes the direction of text.
pub(crate) fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e01ef}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_direction_overrides_are_escaped() {
        let text = "/a\x1b[2J\r\n\u{9b}\u{202e}\u{61c}\u{e0041}\u{e9}";
        assert_eq!(
            printable(text),
            "/a\\u{1b}[2J\\u{d}\\u{a}\\u{9b}\\u{202e}\\u{61c}\\u{e0041}\u{e9}"
        );
        let json = serde_json::to_string(text).unwrap();
        let clean = printable_json(&json);
        assert!(!clean.contains(is_harmful), "{clean}");
        assert_eq!(serde_json::from_str::<String>(&clean).unwrap(), text);
    }
}
