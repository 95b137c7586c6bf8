//! Removes request fields that never go upstream.

use http::HeaderMap;

use crate::header_names::{folds_to, remove_fields, starts_like};

/// Fields that tell the upstream about the sandbox, let a client forge the source of a request, or
/// override the method that was judged.
const NAMES: [&str; 7] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-container-id",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

const PREFIXES: [&str; 2] = ["x-forwarded", "proxy-"];

/// Removes the fields in [`NAMES`] and those that begin with one of [`PREFIXES`], in every spelling
/// that a server may treat as the same name.
pub(super) fn clean(headers: &mut HeaderMap) {
    remove_fields(headers, |name| {
        PREFIXES.iter().any(|prefix| starts_like(name, prefix))
            || NAMES.iter().any(|unwanted| folds_to(name, unwanted))
    });
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn named_and_prefixed_fields_never_go_upstream_in_any_spelling() {
        let mut headers = HeaderMap::new();
        for name in [
            "Forwarded",
            "X-Forwarded-For",
            "x_forwarded_for",
            "X-Forwarded_Host",
            "X-Forwarded",
            "Via",
            "Proxy-Authorization",
            "Proxy_Connection",
            "X-Real-IP",
            "x_real-ip",
            "X-Container-Id",
            "X_Container_Id",
            "X-HTTP-Method-Override",
        ] {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name.clone(), HeaderValue::from_static("1"));
            headers.append(name, HeaderValue::from_static("2"));
        }
        headers.insert("accept", HeaderValue::from_static("a"));
        headers.insert("x-viaduct", HeaderValue::from_static("a"));
        clean(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "x-viaduct"]);
    }
}
