//! A request path, its normal form, and the reason if it is ambiguous.

use std::borrow::Cow;

use percent_encoding::percent_encode_byte;
use thiserror::Error;

/// A path as it was sent, and the normal form that addons judge.
///
/// The normal form has unreserved characters decoded, other escapes in upper case, and dot segments
/// resolved. Spaces, control characters, non-ASCII bytes and malformed `%` are escaped.
/// [`Path::ambiguity`] says why a server might read the path differently. An addon that judges the
/// paths of a host denies requests with an ambiguous path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    sent: Box<str>,
    /// `None` if it equals `sent`.
    normal: Option<Box<str>>,
    ambiguity: Option<Ambiguity>,
}

/// Why a path has more than one reading.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Ambiguity {
    /// A `.` or `..` segment, or a `%2e` anywhere.
    #[error("the path has a dot segment or an encoded dot")]
    DotSegment,
    /// `%2f` or `%5c`.
    #[error("the path has an encoded slash")]
    EncodedSlash,
    /// `\`.
    #[error("the path has a backslash")]
    Backslash,
    /// `;` or `%3b`, after which some servers read path parameters.
    #[error("the path has a semicolon")]
    Semicolon,
    /// `//`.
    #[error("the path has an empty segment")]
    EmptySegment,
    /// A control character, plain or encoded, or a plain space.
    #[error("the path has a control character or space")]
    Control,
    /// A byte over 0x7f, plain or encoded.
    #[error("the path has a byte that is not ASCII")]
    NonAscii,
    /// `%25`, which a server that decodes twice reads differently.
    #[error("the path has an encoded percent sign")]
    DoubleEncoding,
    /// A `%` without two hex digits.
    #[error("the path has a malformed escape")]
    BadEscape,
    /// The path does not begin with `/`.
    #[error("the path does not begin with a slash")]
    NotAbsolute,
}

impl Path {
    /// Parses a path without its query.
    #[must_use]
    pub fn parse(sent: &str) -> Self {
        let (normal, ambiguity) = normalize(sent);
        let normal = match normal {
            Cow::Borrowed(_) => None,
            Cow::Owned(normal) => (normal != sent).then(|| normal.into()),
        };
        Self {
            sent: sent.into(),
            normal,
            ambiguity,
        }
    }

    /// The path to send upstream: as the client sent it, until [`Path::send_normal`] replaces it.
    pub fn sent(&self) -> &str {
        &self.sent
    }

    /// The normal form, which addons judge.
    pub fn normal(&self) -> &str {
        self.normal.as_deref().unwrap_or(&self.sent)
    }

    /// Why a server might read the path differently; `None` if it is unambiguous.
    pub fn ambiguity(&self) -> Option<Ambiguity> {
        self.ambiguity
    }

    /// Replaces the path to send by the normal form.
    pub fn send_normal(&mut self) {
        if let Some(normal) = self.normal.take() {
            self.sent = normal;
        }
    }
}

fn normalize(sent: &str) -> (Cow<'_, str>, Option<Ambiguity>) {
    if is_plain(sent) {
        return (Cow::Borrowed(sent), None);
    }
    let mut ambiguity = (!sent.starts_with('/')).then_some(Ambiguity::NotAbsolute);
    let decoded = decode(sent, &mut ambiguity);
    let resolved = resolve_dots(&decoded, &mut ambiguity);
    (Cow::Owned(resolved), ambiguity)
}

/// Returns `true` only if the path is unambiguous and in normal form. Recognizes the common case in
/// one pass without allocating; `normalize` parses every other path.
fn is_plain(path: &str) -> bool {
    let mut previous = 0;
    for byte in path.bytes() {
        let fits = byte.is_ascii_graphic() && !matches!(byte, b'%' | b'\\' | b';');
        if !fits || (previous == b'/' && matches!(byte, b'/' | b'.')) {
            return false;
        }
        previous = byte;
    }
    path.starts_with('/')
}

fn decode(sent: &str, ambiguity: &mut Option<Ambiguity>) -> String {
    let mut out = String::with_capacity(sent.len());
    let mut bytes = sent.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            note(ambiguity, ambiguity_of_plain(byte));
            if byte.is_ascii_graphic() {
                out.push(byte as char);
            } else {
                out.push_str(percent_encode_byte(byte));
            }
            continue;
        }
        let rest = bytes.clone();
        let hex = |byte: Option<u8>| byte.and_then(|b| (b as char).to_digit(16));
        let (Some(high), Some(low)) = (hex(bytes.next()), hex(bytes.next())) else {
            note(ambiguity, Some(Ambiguity::BadEscape));
            bytes = rest;
            out.push_str("%25");
            continue;
        };
        let value = (high * 16 + low) as u8;
        note(ambiguity, ambiguity_of_encoded(value));
        if value.is_ascii_alphanumeric() || matches!(value, b'-' | b'.' | b'_' | b'~') {
            out.push(value as char);
        } else {
            out.push_str(percent_encode_byte(value));
        }
    }
    out
}

/// Keeps the first ambiguity: one is enough to refuse the path.
fn note(ambiguity: &mut Option<Ambiguity>, found: Option<Ambiguity>) {
    if ambiguity.is_none() {
        *ambiguity = found;
    }
}

fn ambiguity_of_plain(byte: u8) -> Option<Ambiguity> {
    match byte {
        b'\\' => Some(Ambiguity::Backslash),
        b';' => Some(Ambiguity::Semicolon),
        0..=0x20 | 0x7f => Some(Ambiguity::Control),
        0x80.. => Some(Ambiguity::NonAscii),
        _ => None,
    }
}

fn ambiguity_of_encoded(value: u8) -> Option<Ambiguity> {
    match value {
        b'/' | b'\\' => Some(Ambiguity::EncodedSlash),
        b'.' => Some(Ambiguity::DotSegment),
        b'%' => Some(Ambiguity::DoubleEncoding),
        b';' => Some(Ambiguity::Semicolon),
        0..=0x1f | 0x7f => Some(Ambiguity::Control),
        0x80.. => Some(Ambiguity::NonAscii),
        _ => None,
    }
}

/// Removes dot segments (RFC 3986, section 5.2.4). Empty segments stay and are noted as ambiguous.
fn resolve_dots(path: &str, ambiguity: &mut Option<Ambiguity>) -> String {
    let absolute = path.strip_prefix('/').unwrap_or(path);
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = absolute.split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                note(ambiguity, Some(Ambiguity::DotSegment));
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            "" if !last => {
                note(ambiguity, Some(Ambiguity::EmptySegment));
                kept.push("");
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use testkit::each_row;

    #[test]
    fn plain_paths_are_their_own_normal_form() {
        each_row(
            [
                "/",
                "/repos/o/r/pulls/1",
                "/a.b/c..d/",
                "/v1beta/models/x:generate",
                "/a/b.git/info/refs",
            ],
            |path| {
                let parsed = Path::parse(path);
                assert_eq!((parsed.normal(), parsed.ambiguity()), (path, None));
            },
        );
    }

    #[test]
    fn paths_are_normalized_and_ambiguous_ones_report_the_reason() {
        use Ambiguity::*;
        each_row(
            [
                ("/a/../b", "/b", Some(DotSegment)),
                ("/a/./b", "/a/b", Some(DotSegment)),
                ("/a/%2e%2e/b", "/b", Some(DotSegment)),
                ("/a/..", "/", Some(DotSegment)),
                ("/a%2fb", "/a%2Fb", Some(EncodedSlash)),
                ("/a%5Cb", "/a%5Cb", Some(EncodedSlash)),
                ("/a%252fb", "/a%252fb", Some(DoubleEncoding)),
                ("//a", "//a", Some(EmptySegment)),
                ("/a\\b", "/a\\b", Some(Backslash)),
                ("/a;x/b", "/a;x/b", Some(Semicolon)),
                ("/a%00", "/a%00", Some(Control)),
                ("/a%0d%0a", "/a%0D%0A", Some(Control)),
                ("/é", "/%C3%A9", Some(NonAscii)),
                ("/%zz", "/%25zz", Some(BadEscape)),
                ("/%", "/%25", Some(BadEscape)),
                ("a", "/a", Some(NotAbsolute)),
                ("/%61bc%20d", "/abc%20d", None),
            ],
            |(path, normal, why)| {
                let parsed = Path::parse(path);
                assert_eq!(
                    (parsed.normal(), parsed.ambiguity()),
                    (normal, why),
                    "{path}"
                );
            },
        );
    }

    proptest! {
        #[test]
        fn the_normal_form_is_idempotent(path in "/[a-zA-Z0-9./%;\\\\ é2fe5c]{0,60}") {
            let once = Path::parse(&path);
            let twice = Path::parse(once.normal());
            prop_assert_eq!(twice.normal(), once.normal());
        }

        #[test]
        fn an_unambiguous_path_has_no_dot_or_empty_segment_and_no_encoded_slash_or_percent(path in "/[a-z./%;\\\\é0-9A-F]{0,60}") {
            let parsed = Path::parse(&path);
            if parsed.ambiguity().is_none() {
                let normal = parsed.normal();
                let dotted = normal.split('/').any(|s| s == "." || s == "..");
                prop_assert!(!dotted && !normal.contains("//") && !normal.contains("%2F") && !normal.contains("%25"));
            }
        }
    }
}
