//! Secrets in a configured URL, which are redacted wherever a path of the URL's server is printed.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::path::Path;

/// The shortest text that is also redacted within a path segment, in bytes. A shorter one is likely
/// in ordinary text, so it is redacted only as a whole segment.
const MIN_WITHIN: usize = 8;
const REDACTED: &str = "[REDACTED]";

/// The parts of a configured URL's path and query that come from variables. They may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UrlSecrets(Arc<[Zeroizing<String>]>);

impl UrlSecrets {
    /// Finds the secrets of a URL. `values` are the values of the variables that were expanded in
    /// it. A path segment that is partly a variable counts as a whole.
    #[must_use]
    pub fn of(url: &str, values: &[&str]) -> Self {
        let authority = url.find("://").map_or(0, |at| at + "://".len());
        let rest = url.get(authority..).unwrap_or_default();
        let path = rest
            .find(['/', '?', '#'])
            .map_or(url.len(), |at| authority + at);
        let values = values.iter().filter(|value| !value.is_empty());
        let places = values.flat_map(|value| url.match_indices(*value));
        let places = places.map(|(at, value)| at.max(path)..at + value.len());
        let places: Vec<_> = places.filter(|place| !place.is_empty()).collect();
        let query = url.find(['?', '#']).unwrap_or(url.len());
        let mut secrets = Vec::new();
        for segment in segments(url, path..query) {
            if places.iter().any(|place| overlap(place, &segment)) {
                secrets.push(url.get(segment).unwrap_or_default());
            }
        }
        for place in &places {
            let text = url.get(place.clone()).unwrap_or_default();
            let texts = text.split(['/', '?', '#', '&', '=']);
            secrets.extend(texts.filter(|text| text.len() >= MIN_WITHIN));
        }
        // In the log, a path has its normal form.
        let normal = |secret: &&str| {
            let path = Path::parse(&format!("/{secret}"));
            path.normal().trim_start_matches('/').to_owned()
        };
        let forms = secrets
            .iter()
            .flat_map(|secret| [(*secret).to_owned(), normal(secret)]);
        let mut all: Vec<_> = forms
            .filter(|form| !form.is_empty())
            .map(Zeroizing::new)
            .collect();
        // A secret may contain another, so the longer one is replaced first.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(all.into())
    }

    /// A path without the secrets.
    pub fn redact<'p>(&self, path: &'p str) -> Cow<'p, str> {
        if self.0.is_empty() {
            return path.into();
        }
        let segments = path.split('/').map(|segment| {
            let mut segment = Cow::Borrowed(segment);
            for secret in self.0.iter() {
                if *segment == **secret {
                    return REDACTED.into();
                }
                if secret.len() >= MIN_WITHIN && segment.contains(secret.as_str()) {
                    segment = segment.replace(secret.as_str(), REDACTED).into();
                }
            }
            segment
        });
        segments.collect::<Vec<_>>().join("/").into()
    }
}

impl fmt::Debug for UrlSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The places of the path segments within a part of a URL.
fn segments(url: &str, part: Range<usize>) -> Vec<Range<usize>> {
    let text = url.get(part.clone()).unwrap_or_default();
    let mut start = part.start;
    let places = text.split('/').map(|segment| {
        let place = start..start + segment.len();
        start = place.end + 1;
        place
    });
    places.filter(|place| !place.is_empty()).collect()
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn what_variables_add_to_the_path_of_a_url_is_redacted_in_every_path() {
        each_row(
            [
                (
                    "https://a.example/${/s3cret-token}/mcp",
                    "/s3cret-token/mcp",
                    "/[REDACTED]/mcp",
                ),
                (
                    "https://a.example/x/${s3cret-token}",
                    "/x/s3cret-token/y",
                    "/x/[REDACTED]/y",
                ),
                // A short secret, and one that is a part of its segment.
                (
                    "https://a.example/${abc}/mcp",
                    "/abc/mcp",
                    "/[REDACTED]/mcp",
                ),
                (
                    "https://a.example/v1-${abc}/mcp",
                    "/v1-abc/mcp",
                    "/[REDACTED]/mcp",
                ),
                ("https://a.example/v1-${abc}/mcp", "/abcd/v1", "/abcd/v1"),
                (
                    "https://a.example/t-${s3cret-token}-x",
                    "/as3cret-tokenb",
                    "/a[REDACTED]b",
                ),
                // The path as the server names it in an event, and in normal form.
                (
                    "https://a.example/${s3cret%2Dtoken}/sse",
                    "/s3cret-token/message",
                    "/[REDACTED]/message",
                ),
                (
                    "https://a.example/${s3cret-t\u{f6}ken}/",
                    "/s3cret-t%C3%B6ken/",
                    "/[REDACTED]/",
                ),
                // The variable is the whole URL, its end, its query, or its host.
                (
                    "${https://a.example/s3cret-token/mcp}",
                    "/s3cret-token/mcp",
                    "/[REDACTED]/[REDACTED]",
                ),
                (
                    "https://a.example${/team/s3cret-token}",
                    "/team/s3cret-token",
                    "/[REDACTED]/[REDACTED]",
                ),
                (
                    "https://a.example/mcp?key=${s3cret-token}",
                    "/mcp/s3cret-token",
                    "/mcp/[REDACTED]",
                ),
                ("https://${a.example}/mcp", "/mcp", "/mcp"),
                ("https://${a.example:8443}/mcp", "/mcp/8443", "/mcp/8443"),
                ("https://a.example/mcp", "/mcp", "/mcp"),
            ],
            |(url, path, printed)| {
                let (before, rest) = url.split_once("${").unwrap_or((url, "}"));
                let (value, after) = rest.split_once('}').unwrap();
                let url = format!("{before}{value}{after}");
                let secrets = UrlSecrets::of(&url, &[value]);
                assert_eq!(secrets.redact(path), *printed, "{url}");
            },
        );
    }
}
