//! Checks `Host` and `Origin` against DNS rebinding.

use addons::contract::{Authority, Code, Denial, Host};
use http::HeaderMap;
use http::header::{HOST, ORIGIN};

/// Names that are allowed without being listed in `allowed_hosts`.
const OWN_NAMES: [&str; 2] = ["localhost", "unified-proxy"];

/// Refuses a request in each of these cases:
///
/// - `Host` is missing or malformed.
/// - `Origin` is repeated, or is not an HTTP or HTTPS origin.
/// - `Host` or `Origin` contains a name that is neither in `OWN_NAMES` nor in `allowed`.
///
/// Address literals pass, since DNS rebinding needs a name. Entries of `allowed` are names, with or
/// without a port.
pub fn check(headers: &HeaderMap, allowed: &[impl AsRef<str>]) -> Result<(), Denial> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if !host.is_some_and(|host| is_ours(host, 80, allowed)) {
        return Err(not_allowed("Host", host));
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else {
        return Ok(());
    };
    let origin = origin.to_str().ok().filter(|_| origins.next().is_none());
    match origin.and_then(authority_of) {
        Some((authority, port)) if is_ours(authority, port, allowed) => Ok(()),
        _ => Err(not_allowed("Origin", origin)),
    }
}

/// The authority of a web origin, and the default port of its scheme.
fn authority_of(origin: &str) -> Option<(&str, u16)> {
    let http = origin.strip_prefix("http://").map(|rest| (rest, 80));
    http.or_else(|| origin.strip_prefix("https://").map(|rest| (rest, 443)))
}

fn is_ours(text: &str, default_port: u16, allowed: &[impl AsRef<str>]) -> bool {
    let Ok(found) = Authority::parse(text, Some(default_port)) else {
        return false;
    };
    let Host::Name(name) = &found.host else {
        return true;
    };
    OWN_NAMES.contains(&&**name) || allowed.iter().any(|entry| names(entry.as_ref(), &found))
}

fn names(entry: &str, found: &Authority) -> bool {
    // An entry without a port matches every port.
    Authority::parse(entry, Some(found.port)).is_ok_and(|entry| entry == *found)
}

fn not_allowed(field: &'static str, value: Option<&str>) -> Denial {
    let named = value.unwrap_or("none");
    let sentence = format!(
        "{field} not allowed: {named}; clients reach the gateway as localhost, unified-proxy, an address or a name in allowed_hosts"
    );
    Denial::new(Code::DomainNotAllowed, sentence)
        .with("header", field)
        .rule("allowed_hosts")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use testkit::each_row;

    use super::*;

    const ALLOWED: [&str; 2] = ["gateway.example.com", "tools.example.com:8090"];

    fn passes(host: Option<&str>, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in [(HOST, host), (ORIGIN, origin)] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
        }
        check(&headers, &ALLOWED).is_ok()
    }

    #[test]
    fn only_own_names_addresses_and_listed_names_pass_as_host_and_as_origin() {
        each_row(
            [
                ("localhost", true),
                ("localhost:8090", true),
                ("LOCALHOST:1", true),
                ("unified-proxy:8090", true),
                ("127.0.0.1:8090", true),
                ("10.0.0.7", true),
                ("[::1]:8090", true),
                ("gateway.example.com", true),
                ("gateway.example.com:1234", true),
                ("tools.example.com:8090", true),
                ("tools.example.com:8091", false),
                ("evil.example.com", false),
                ("localhost.evil.example.com", false),
                ("sub.gateway.example.com", false),
                ("user@localhost", false),
                ("localhost:0", false),
                ("", false),
                ("localhost, evil.example.com", false),
            ],
            |(name, ours)| {
                assert_eq!(passes(Some(name), None), ours, "Host: {name}");
                let origin = format!("http://{name}");
                assert_eq!(passes(Some("localhost"), Some(&origin)), ours, "{origin}");
            },
        );
        assert!(!passes(None, None));
    }

    #[test]
    fn only_one_http_or_https_origin_of_the_gateway_passes() {
        each_row(
            [
                ("https://localhost", true),
                ("https://gateway.example.com", true),
                ("null", false),
                ("file://", false),
                ("localhost", false),
                ("ftp://localhost", false),
                ("http://localhost/path", false),
                ("http://localhost http://evil.example.com", false),
                ("http://evil.example.com", false),
            ],
            |(origin, passed)| assert_eq!(passes(Some("localhost"), Some(origin)), passed),
        );
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        for origin in ["http://localhost", "http://evil.example.com"] {
            headers.append(ORIGIN, HeaderValue::from_static(origin));
        }
        assert!(check(&headers, &ALLOWED).is_err());
    }
}
