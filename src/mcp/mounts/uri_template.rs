//! URI templates (RFC 6570), to find the server that a URI belongs to.

/// The longest template, in bytes.
const MAX_LENGTH: usize = 2048;
/// The most expressions of one template.
const MAX_EXPRESSIONS: usize = 32;

/// A template, which matches the URIs to which it may expand. A match takes time in proportion to
/// the length of the URI and the number of parts. There is no compiled automaton, whose size and
/// cache a server could inflate.
pub(super) struct UriTemplate {
    /// The text before the first expression.
    prefix: Box<[u8]>,
    rest: Vec<Part>,
}

enum Part {
    Literal(Box<[u8]>),
    Expression(Values),
}

/// The texts that an expression may produce.
#[derive(Clone, Copy)]
struct Values {
    /// The first byte; `None` if any byte that is not excluded may be the first.
    first: Option<u8>,
    excluded: &'static [u8],
    may_be_empty: bool,
}

impl UriTemplate {
    /// Parses a template; `None` if an expression is empty or not closed, or if the template
    /// exceeds a bound. Other errors are not detected. The values of variables are not known, so an
    /// expression matches any text that it may produce. Exception: an expression without an
    /// operator does not match the empty text.
    pub fn parse(template: &str) -> Option<Self> {
        if template.len() > MAX_LENGTH || template.matches('{').count() > MAX_EXPRESSIONS {
            return None;
        }
        let (prefix, mut behind) = match template.find('{') {
            Some(at) => template.split_at(at),
            None => (template, ""),
        };
        let mut rest = Vec::new();
        while let Some(expression) = behind.strip_prefix('{') {
            let (expression, after) = expression.split_once('}')?;
            rest.push(Part::Expression(Values::of(expression)?));
            let (literal, next) = after.split_at(after.find('{').unwrap_or(after.len()));
            rest.push(Part::Literal(literal.as_bytes().into()));
            behind = next;
        }
        let prefix = prefix.as_bytes().into();
        Some(Self { prefix, rest })
    }

    /// Number of parts, in which a literal counts once more for each 64 bytes. The time of a match
    /// grows with it: a literal is compared at each offset of the URI.
    pub fn parts(&self) -> usize {
        let of = |part: &Part| match part {
            Part::Literal(literal) => 1 + literal.len() / 64,
            Part::Expression(_) => 1,
        };
        self.rest.iter().map(of).sum::<usize>() + 1
    }

    pub fn matches(&self, uri: &str) -> bool {
        let Some(text) = uri.as_bytes().strip_prefix(&*self.prefix) else {
            return false;
        };
        // At each offset, whether the parts so far match the text before it.
        let mut ends = vec![false; text.len() + 1];
        if let Some(start) = ends.first_mut() {
            *start = true;
        }
        for part in &self.rest {
            ends = match part {
                Part::Literal(literal) => after_literal(literal, text, &ends),
                Part::Expression(values) => values.after(text, &ends),
            };
        }
        ends.last() == Some(&true)
    }
}

/// The offsets at which a literal may end that begins at one of these offsets.
fn after_literal(literal: &[u8], text: &[u8], starts: &[bool]) -> Vec<bool> {
    let mut ends = vec![false; starts.len()];
    let places = starts.iter().zip(ends.iter_mut().skip(literal.len()));
    for (at, (may_start, ends)) in places.enumerate() {
        let fits = |text: &[u8]| text.starts_with(literal);
        *ends = *may_start && text.get(at..).is_some_and(fits);
    }
    ends
}

impl Values {
    /// The values of an expression; `None` if it is empty.
    fn of(expression: &str) -> Option<Self> {
        let operator = expression.bytes().next()?;
        let excluded: &[u8] = match operator {
            b'+' | b'#' => b" ",
            b'?' | b'&' => b"# ",
            b'/' | b';' => b"?# ",
            b'.' => b"/?# ",
            _ if expression.contains([',', '*']) => b"?# ",
            _ => b"/?# ",
        };
        let first = b"/.;?&".contains(&operator).then_some(operator);
        Some(Self {
            first,
            excluded,
            may_be_empty: first.is_some() || b"+#".contains(&operator),
        })
    }

    /// The offsets at which a value may end that begins at one of these offsets.
    fn after(self, text: &[u8], starts: &[bool]) -> Vec<bool> {
        let mut ends = match self.may_be_empty {
            true => starts.to_vec(),
            false => vec![false; starts.len()],
        };
        let mut is_inside = false;
        for ((may_start, byte), end) in starts.iter().zip(text).zip(ends.iter_mut().skip(1)) {
            let begins = *may_start && self.first.is_none_or(|first| first == *byte);
            is_inside = (is_inside || begins) && !self.excluded.contains(byte);
            *end |= is_inside;
        }
        ends
    }
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
                ("test://static", "test://static/1", false),
                ("{+a}/{b}.{c}", "x://y/z/1.2.3", true),
                ("{+a}/{b}.{c}", "x://y/z.1/2", false),
                ("a://{x}ab{y}", "a://aabab", true),
                ("a://{x}ab", "a://aaab", true),
                ("a://{x}ab", "a://aba", false),
                ("a://x{/path,more}", "a://x/y/z", true),
                ("a://x{/path}", "a://xy", false),
                ("a://x{.format}", "a://x.json", true),
                ("a://x{.format}", "a://x.json/y", false),
                ("a://x{;p}{?q}{&r}", "a://x;p=1?q=2&r=3", true),
                ("a://x{#fragment}", "a://x#y z", false),
                ("a://{é}é", "a://éé", true),
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
