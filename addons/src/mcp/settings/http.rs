//! Reads the URL and the headers of a server over HTTP.

use http::header::{HeaderName, HeaderValue};
use http::{Uri, uri};

use super::clients::warn_of_bare_variable;
use super::{HiddenValue, HttpSettings, HttpTransport, ServerKind};
use crate::contract::settings::{Fields, Setting};
use crate::contract::{Authority, Endpoint, Scheme, UrlSecrets};

pub(super) fn read(
    at: &Setting<'_>,
    fields: &Fields<'_>,
    transport: HttpTransport,
) -> Option<ServerKind> {
    let (url, endpoint) = at.parse(http_url)?;
    // Codex has another name for the key.
    let lists = ["headers", "http_headers"].map(|key| fields.find(key));
    let entries = lists.into_iter().flatten().filter_map(|at| at.entries());
    let headers = entries.flatten().filter_map(|(key, value)| {
        if HeaderName::from_bytes(key.name.as_bytes()).is_err() {
            value.refuse_key(key, "is not a valid header field name");
            return None;
        }
        let text = value.any_text()?;
        warn_of_bare_variable(&value, text);
        if HeaderValue::from_str(text).is_err() {
            value.refuse(
                "has a character that a header must not contain (a line break at its end?)",
            );
            return None;
        }
        Some((key.name.to_ascii_lowercase(), HiddenValue::of(text)))
    });
    Some(ServerKind::Http(HttpSettings {
        url: HiddenValue::of(&url),
        url_secrets: UrlSecrets::of(&url, &at.expanded()),
        endpoint,
        headers: headers.collect(),
        transport,
    }))
}

fn http_url(text: &str) -> Result<(String, Endpoint), String> {
    let wrong = || "must be a URL such as https://mcp.example.com/mcp".to_owned();
    let parts: uri::Parts = text.parse::<Uri>().map_err(|_| wrong())?.into_parts();
    let (scheme, port) = match parts.scheme.as_ref().map(uri::Scheme::as_str) {
        Some("https") => (Scheme::Https, 443),
        Some("http") => (Scheme::Http, 80),
        _ => return Err(wrong()),
    };
    let authority = parts.authority.ok_or_else(wrong)?;
    if authority.as_str().contains('@') {
        return Err("must not contain a user or a password: put them under headers".to_owned());
    }
    let authority = Authority::parse(authority.as_str(), Some(port));
    let Authority { host, port } = authority.map_err(|error| error.to_string())?;
    Ok((text.to_owned(), Endpoint { scheme, host, port }))
}
