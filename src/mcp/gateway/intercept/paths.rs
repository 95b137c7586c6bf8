//! The paths of the interceptor API, and those that a lenient reader would take for them.

use super::reply::Dialect;

/// The first segment of the API's paths.
const NAME: &str = "intercept";
/// The most times that a path is decoded. What is encoded more often is not under `/intercept` for
/// any reader.
const MAX_DECODINGS: usize = 3;

/// An endpoint of the interceptor API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Before,
    After,
    ClaudeCode,
    /// Another path under `/intercept`.
    Unknown,
}

impl Endpoint {
    pub fn of(path: &str) -> Self {
        match path.strip_suffix('/').unwrap_or(path) {
            "/intercept/before" => Self::Before,
            "/intercept/after" => Self::After,
            "/intercept/claude-code" => Self::ClaudeCode,
            _ => Self::Unknown,
        }
    }

    /// The dialect before the body is read. A hook may be meant for an unknown path, and its block is
    /// one for the other dialects, too.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::ClaudeCode | Self::Unknown => Dialect::PreToolUse,
            Self::Before | Self::After => Dialect::Docker,
        }
    }

    /// The label of the metrics before the body is read.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::ClaudeCode | Self::Unknown => "other",
        }
    }

    /// Whether the path is one of the API.
    pub fn is_known(self) -> bool {
        matches!(self, Self::Before | Self::After | Self::ClaudeCode)
    }
}

/// Whether a path is under `/intercept`, also for a reader that decodes it, ignores case, merges
/// slashes or resolves dots.
pub fn is_under(path: &str) -> bool {
    // Decoding makes no path longer. Most paths, such as /mcp, are too short.
    path.len() > NAME.len() && segments(path).iter().any(|segment| segment == NAME)
}

/// The segments of a path as a lenient reader sees them: decoded, in lower case and without
/// parameters.
fn segments(path: &str) -> Vec<String> {
    let mut path = path.to_owned();
    for _ in 0..MAX_DECODINGS {
        path = decoded(&path);
    }
    let path = path.replace('\\', "/").to_ascii_lowercase();
    let segments = path.split(['/', '?', '#']);
    let bare = segments.map(|one| one.split(';').next().unwrap_or_default());
    bare.map(|one| one.trim_matches(|c: char| !c.is_ascii_graphic()).to_owned())
        .collect()
}

/// The path with its percent-encoded bytes decoded.
fn decoded(path: &str) -> String {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = match byte {
            Some(_) => behind.get(2..).unwrap_or_default(),
            None => behind,
        };
        out.push(byte.unwrap_or(*first));
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn what_a_lenient_reader_takes_for_the_api_is_under_it() {
        each_row(
            [
                ("/intercept", true),
                ("/intercept/", true),
                ("/intercept/before", true),
                ("//intercept//before", true),
                ("/INTERCEPT/before", true),
                ("/%69ntercept/before", true),
                ("/%2569ntercept/before", true),
                ("/intercept%2fbefore", true),
                ("/intercept%5Cbefore", true),
                ("/x/../intercept/before", true),
                ("/./intercept;a=b/before", true),
                ("/intercept%00/before", true),
                ("/intercept/../mcp", true),
                ("/mcp", false),
                ("/interceptor", false),
                ("/health", false),
            ],
            |(path, expected)| assert_eq!(is_under(path), expected, "{path}"),
        );
    }

    #[test]
    fn only_exact_paths_are_endpoints() {
        each_row(
            [
                ("/intercept/before", Endpoint::Before),
                ("/intercept/after/", Endpoint::After),
                ("/intercept/claude-code", Endpoint::ClaudeCode),
                ("/intercept//before", Endpoint::Unknown),
                ("/intercept/Before", Endpoint::Unknown),
                ("/intercept/before//", Endpoint::Unknown),
                ("/intercept/claude-code/x", Endpoint::Unknown),
                ("/intercept//claude-code", Endpoint::Unknown),
            ],
            |(path, expected)| assert_eq!(Endpoint::of(path), expected, "{path}"),
        );
    }
}
