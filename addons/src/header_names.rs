//! Header names that servers fold together.
//!
//! Many servers read `X_Api_Key` as `X-Api-Key`, since both names become the same variable (RFC
//! 3875, section 4.1.18). So a field is removed in every spelling. Letter case needs no folding,
//! since a [`HeaderName`] is lower case.

use http::{HeaderMap, HeaderName};

/// Whether a server might read `name` as `canonical`, which is lower case with hyphens.
pub(crate) fn folds_to(name: &str, canonical: &str) -> bool {
    name.len() == canonical.len() && starts_like(name, canonical)
}

/// Whether a server might read `name` as a name that begins with `prefix`.
pub(crate) fn starts_like(name: &str, prefix: &str) -> bool {
    let same = |(a, b): (u8, u8)| a == b || (a == b'_' && b == b'-');
    name.len() >= prefix.len() && name.bytes().zip(prefix.bytes()).all(same)
}

/// Removes every field for whose name `unwanted` returns `true`, with all its values.
pub(crate) fn remove_fields(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let found: Vec<HeaderName> = headers
        .keys()
        .filter(|name| unwanted(name.as_str()))
        .cloned()
        .collect();
    for name in found {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn underscores_fold_and_other_bytes_do_not() {
        each_row(
            [
                ("x-api-key", true),
                ("x_api_key", true),
                ("x-api_key", true),
                ("x-api-keys", false),
                ("xxapi-key", false),
                ("x-api-ke", false),
            ],
            |(name, folds)| {
                assert_eq!(folds_to(name, "x-api-key"), folds, "{name}");
            },
        );
    }
}
