//! JSON with comments and trailing commas, in which many MCP clients write their settings.

use serde_json::value::RawValue;
use zeroize::Zeroizing;

/// The JSON in `text`: comments, trailing commas and tabs are replaced by spaces, so that every value
/// keeps its line and column. `None` if the rest is not JSON. So `//` in a file that is YAML, such as
/// that of a URL, is never taken for a comment.
pub fn without_comments(text: &str) -> Option<Zeroizing<String>> {
    if !text.trim_start().starts_with(['{', '/']) {
        return None;
    }
    let mut json = Zeroizing::new(String::with_capacity(text.len()));
    // The last comma, if no value or bracket follows it yet.
    let mut comma = None;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (end, is_comment) = match first {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), true),
            '/' if rest.starts_with("/*") => (rest.get(2..)?.find("*/")?.checked_add(4)?, true),
            '"' => (string_end(rest)?, false),
            _ => (first.len_utf8(), false),
        };
        let (part, after) = rest.split_at_checked(end)?;
        rest = after;
        if is_comment || first.is_whitespace() {
            let blank = |c| if c == '\n' { '\n' } else { ' ' };
            json.extend(part.chars().map(blank));
            continue;
        }
        if let ('}' | ']', Some(at)) = (first, comma) {
            json.replace_range(at..=at, " ");
        }
        comma = (first == ',').then_some(json.len());
        json.push_str(part);
    }
    serde_json::from_str::<&RawValue>(&json)
        .is_ok()
        .then_some(json)
}

/// The length of the string with which a text begins, with its quotes.
fn string_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let mut inside = text.char_indices().skip(1);
    let end = inside.find(|(_, c)| {
        let ends = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    end?.0.checked_add(1)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn comments_trailing_commas_and_tabs_become_spaces() {
        each_row(
            [
                ("{}", "{}"),
                ("// a\n{\"b\":1}", "    \n{\"b\":1}"),
                (
                    "{\"a\":1, // é \"x\"\n \"b\":2}",
                    "{\"a\":1,         \n \"b\":2}",
                ),
                (
                    "/* a\n{ */{\"a\":[1,/*,*/2,],}",
                    "    \n    {\"a\":[1,     2 ] }",
                ),
                ("{\t\"a\":\t1,\r\n}", "{ \"a\": 1  \n}"),
                (
                    r#"{"a":"// no","b\"/*":"*/,]"}"#,
                    r#"{"a":"// no","b\"/*":"*/,]"}"#,
                ),
                ("{\"a\":1} // end", "{\"a\":1}       "),
            ],
            |(text, expected)| {
                let json = without_comments(text).unwrap();
                assert_eq!(json.as_str(), expected, "{text}");
            },
        );
    }

    #[test]
    fn text_that_is_not_json_apart_from_comments_is_left_as_it_is() {
        each_row(
            [
                "",
                "a: 1 // b",
                "{ a: { url: https://a.example.com/mcp } }",
                "{ \"command\": [sh, -c, //bin/true] }",
                "{ \"a\": 1, # b\n }",
                "{ \"a\": 1 /* b }",
                "{ \"a\": \"b }",
                "{ \"a\": 1 } // b\n{}",
                "{ \"a\": 1 /*/ }",
                "[1]",
            ],
            |text| assert!(without_comments(text).is_none(), "{text}"),
        );
    }
}
