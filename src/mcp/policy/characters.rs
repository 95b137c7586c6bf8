//! Characters of a Rego text that the evaluator reads otherwise than a person does.

use crate::runtime::is_harmful;

/// Refuses characters with which a part of the text is not evaluated although it looks as if it were:
/// regorus takes U+0000 for the end of the text, and continues a comment after a carriage return.
pub fn check(text: &str) -> Result<(), String> {
    refuse(text, |_| false)
}

/// Refuses also invisible characters: a person decides about exactly the text that is shown.
pub fn check_shown(text: &str) -> Result<(), String> {
    refuse(text, |c| is_harmful(c) && !matches!(c, '\n' | '\t' | '\r'))
}

fn refuse(text: &str, is_refused: impl Fn(char) -> bool) -> Result<(), String> {
    for (line, number) in text.split('\n').zip(1_usize..) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let mut characters = line.chars().zip(1_usize..);
        let found = characters.find(|(c, _)| matches!(c, '\0' | '\r') || is_refused(*c));
        if let Some((c, column)) = found {
            return Err(format!(
                "line {number}, column {column}: the character U+{:04X} hides from a reader what is \
                 evaluated; remove it, or write it as an escape in a string",
                u32::from(c)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn characters_that_hide_a_part_of_the_text_are_refused_with_their_place() {
        each_row(
            [
                ("package a\n\n\tx := \"ä\"\r\n", None, None),
                ("", None, None),
                ("a\n# b\0\nc", Some("line 2, column 4: "), Some("U+0000")),
                ("\0", Some("line 1, column 1: "), Some("U+0000")),
                (
                    "# a\rdeny := true\n",
                    Some("line 1, column 4: "),
                    Some("U+000D"),
                ),
                ("a\r\r\n", Some("line 1, column 2: "), Some("U+000D")),
            ],
            |(text, place, character)| {
                for checked in [check(text), check_shown(text)] {
                    let error = checked.err().unwrap_or_default();
                    assert!(error.starts_with(place.unwrap_or_default()), "{error}");
                    assert!(error.contains(character.unwrap_or_default()), "{error}");
                    assert_eq!(error.is_empty(), place.is_none(), "{error}");
                }
            },
        );
    }

    #[test]
    fn a_text_that_a_person_decides_about_has_no_invisible_characters() {
        each_row(
            [
                "\u{b}", "\u{c}", "\u{1b}", "\u{85}", "\u{200b}", "\u{202e}", "\u{2028}",
                "\u{feff}",
            ],
            |character| {
                let text = format!("package a\n# b{character}c\n");
                assert_eq!(check(&text), Ok(()));
                let error = check_shown(&text).unwrap_err();
                assert!(error.starts_with("line 2, column 4: "), "{error}");
            },
        );
    }
}
