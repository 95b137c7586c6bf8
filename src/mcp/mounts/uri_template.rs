//! URI templates (RFC 6570), to find the server that a URI belongs to.

use regex::{Regex, RegexBuilder};

/// The longest template, in bytes.
const MAX_LENGTH: usize = 2048;
/// The most expressions of one template.
const MAX_EXPRESSIONS: usize = 32;
/// The most memory that a compiled template takes, in bytes.
const MAX_COMPILED: usize = 256 << 10;

/// A compiled template, which matches the URIs to which the template may expand.
pub(super) struct UriTemplate(Regex);

impl UriTemplate {
    /// Compiles a template; `None` if an expression is empty or not closed, or if the template
    /// exceeds a bound. Other errors are not detected. The values of variables are not known, so an
    /// expression matches any text that it may produce. Exception: an expression without an
    /// operator does not match the empty text.
    pub fn parse(template: &str) -> Option<Self> {
        if template.len() > MAX_LENGTH || template.matches('{').count() > MAX_EXPRESSIONS {
            return None;
        }
        let mut pattern = String::from("^");
        let mut rest = template;
        while let Some((literal, after)) = rest.split_once('{') {
            let (expression, behind) = after.split_once('}')?;
            pattern.push_str(&regex::escape(literal));
            pattern.push_str(values(expression)?);
            rest = behind;
        }
        pattern.push_str(&regex::escape(rest));
        pattern.push('$');
        let mut builder = RegexBuilder::new(&pattern);
        builder.size_limit(MAX_COMPILED);
        builder.build().ok().map(Self)
    }

    pub fn matches(&self, uri: &str) -> bool {
        self.0.is_match(uri)
    }
}

/// A regular expression for the expansions of an expression; `None` if the expression is empty.
fn values(expression: &str) -> Option<&'static str> {
    let operator = expression.chars().next()?;
    let several = expression.contains([',', '*']);
    Some(match operator {
        '+' | '#' => "[^ ]*",
        '/' => "(?:/[^?# ]*)?",
        '.' => r"(?:\.[^/?# ]*)?",
        ';' => "(?:;[^/?# ]*)?",
        '?' => r"(?:\?[^# ]*)?",
        '&' => "(?:&[^# ]*)?",
        _ if several => "[^?# ]+",
        _ => "[^/?# ]+",
    })
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_uri_matches_the_template_that_expands_to_it() {
        each_row(
            [
                ("file:///{path}", "file:///a", true),
                ("file:///{path}", "file:///a/b", false),
                ("file:///{+path}", "file:///a/b", true),
                ("file:///{path*}", "file:///a/b", true),
                ("db://{table}/{id}", "db://users/1", true),
                ("db://{table}/{id}", "db://users", false),
                ("db://{table}/{id}", "xdb://users/1", false),
                ("db://{table}{?q,limit}", "db://users?q=1", true),
                ("db://{table}{?q,limit}", "db://users", true),
                ("a.c://{x}", "abc://1", false),
                ("test://static", "test://static", true),
            ],
            |(template, uri, fits)| {
                let template = UriTemplate::parse(template).unwrap();
                assert_eq!(template.matches(uri), fits, "{uri}");
            },
        );
    }

    #[test]
    fn templates_with_an_empty_or_unclosed_expression_or_over_a_bound_are_not_compiled() {
        let many = "{a}".repeat(MAX_EXPRESSIONS + 1);
        let long = "a".repeat(MAX_LENGTH + 1);
        for template in ["a{b", "a{}", &many, &long] {
            assert!(UriTemplate::parse(template).is_none(), "{template}");
        }
    }
}
