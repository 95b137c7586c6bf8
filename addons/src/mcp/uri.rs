//! Recognises URIs that all servers read alike.

/// The longest URI that is compared with patterns, in bytes.
const MAX_URI: usize = 4096;

/// Whether every server reads a URI as it is written: no server can decode or normalise it to
/// another one (RFC 3986, section 6.2), except for what [`looked_up`] leaves out.
pub(super) fn is_plain(uri: &str) -> bool {
    if uri.len() > MAX_URI || !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
        return false;
    }
    let Some((_scheme, rest)) = uri.split_once(':') else {
        return false;
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
        None => ("", rest.strip_prefix('/').unwrap_or(rest)),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_segment = |segment: &str| !matches!(segment, "." | "..");
    let mut inner = path.split('/').rev().skip(1);
    authority.bytes().all(fits)
        && !authority.ends_with('.')
        && path.split('/').all(is_segment)
        // An empty segment, except at the end, may be merged with the next one.
        && !inner.any(str::is_empty)
        && !uri.contains(['\\', '{', '}', '|', '^', '`', '<', '>', '"'])
        && escapes_are_plain(uri)
}

/// What a server looks up for a URI if it ignores letter case, the query, the fragment, slashes at
/// both ends, and the authority `localhost` of a file.
pub(super) fn looked_up(uri: &str) -> String {
    let uri = uri.to_lowercase();
    let uri = uri.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = uri.split_once(':') else {
        return uri.to_owned();
    };
    let rest = rest.trim_matches('/');
    let path = rest.strip_prefix("localhost/");
    let path = path.filter(|_| scheme == "file").unwrap_or(rest);
    format!("{scheme}:{path}")
}

/// Whether each percent-encoded byte is one that must be encoded.
fn escapes_are_plain(uri: &str) -> bool {
    uri.split('%').skip(1).all(|rest| {
        let digits = rest
            .get(..2)
            .filter(|digits| digits.bytes().all(|one| one.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_some_and(|byte| !byte.is_ascii_alphanumeric() && !b"-._~/\\%?#:@*".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_uri_that_a_server_might_read_as_another_is_not_plain() {
        each_row(
            [
                ("kb://hr/salaries", true),
                ("kb://hr/", true),
                ("kb://hr", true),
                ("file:///srv/a%20b.txt", true),
                ("memory:insights/2", true),
                ("web://page/x?url=http://a/../b", true),
                ("kb://hr/../salaries", false),
                ("kb://hr/./salaries", false),
                ("kb://hr/..", false),
                ("kb://x//hr/salaries", false),
                ("kb:////hr", false),
                ("kb://h%72/salaries", false),
                ("kb://hr%2fsalaries", false),
                ("kb://hr/%2e%2e/a", false),
                ("kb://hr/a%", false),
                ("kb://hr/a%+1", false),
                ("kb://me@hr/salaries", false),
                ("kb://hr:80/salaries", false),
                ("kb://hr./salaries", false),
                ("kb:\\\\hr\\salaries", false),
                ("kb://{department}/salaries", false),
                ("kb://hr/s\u{430}laries", false),
                ("kb://hr/sal aries", false),
                ("hr", false),
            ],
            |(uri, expected)| assert_eq!(is_plain(uri), expected),
        );
        assert!(!is_plain(&format!("kb://{}", "a".repeat(MAX_URI))));
    }
}
