//! Framing and hop-by-hop fields: what belongs to one connection and must not cross.

use addons::contract::{Denial, Path, Request};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::response;
use http::{Method, Version};

/// The longest path with its query.
const MAX_TARGET: usize = 8 * 1024;

/// Tells clients that a denial is ours.
pub const X_PROXY_DENIED: HeaderName = HeaderName::from_static("x-proxy-denied");

const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    UPGRADE,
    TE,
    TRANSFER_ENCODING,
    EXPECT,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What a client asked its connection to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    None,
    Websocket,
    /// Anything else, HTTP/2 in clear text included.
    Other,
}

/// Reads the head into the chain's form. What is framed in more than one way is refused, and
/// what belongs to this connection alone is left behind.
pub fn read_head(parts: Parts) -> Result<(Request, Upgrade), Denial> {
    let content_length = check_framing(&parts)?;
    let target_length = parts.uri.path().len() + parts.uri.query().map_or(0, str::len);
    if target_length > MAX_TARGET {
        return Err(Denial::malformed("the path and query are over 8 KiB"));
    }
    let upgrade = requested_upgrade(&parts);
    let Parts {
        method,
        uri,
        mut headers,
        ..
    } = parts;
    let wants_trailers = headers.get(TE).is_some_and(|te| has_token(te, "trailers"));
    strip_hop_by_hop(&mut headers);
    headers.remove(HOST);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    let path = Path::parse(uri.path());
    let query = uri.query().map(Into::into);
    let mut request = Request::new(method, path, query, headers);
    request.content_length = content_length;
    request.websocket = upgrade == Upgrade::Websocket;
    Ok((request, upgrade))
}

/// One reading of where the body ends. hyper has refused most of what is wrong by now; what
/// it lets pass in RFC 9112's one way is refused here all the same, since a peer that disagrees
/// about a border can smuggle a request across it.
fn check_framing(parts: &Parts) -> Result<Option<u64>, Denial> {
    let lengths = parts.headers.get_all(CONTENT_LENGTH).iter().count();
    let codings: Vec<_> = parts.headers.get_all(TRANSFER_ENCODING).iter().collect();
    if lengths > 1 {
        return Err(Denial::malformed("Content-Length appears twice"));
    }
    match codings.as_slice() {
        [] => {}
        [_] if lengths > 0 => {
            return Err(Denial::malformed(
                "both Content-Length and Transfer-Encoding are given",
            ));
        }
        [coding]
            if coding.as_bytes().eq_ignore_ascii_case(b"chunked")
                && parts.version == Version::HTTP_11 => {}
        _ => return Err(Denial::malformed("Transfer-Encoding is other than chunked")),
    }
    let Some(length) = parts.headers.get(CONTENT_LENGTH) else {
        return Ok(None);
    };
    let digits = length
        .to_str()
        .ok()
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let parsed = digits.and_then(|digits| digits.parse().ok());
    parsed
        .map(Some)
        .ok_or_else(|| Denial::malformed("Content-Length is not a number"))
}

fn requested_upgrade(parts: &Parts) -> Upgrade {
    let Some(protocol) = parts.headers.get(UPGRADE) else {
        return Upgrade::None;
    };
    let plain_get = parts.version == Version::HTTP_11 && parts.method == Method::GET;
    let asked = parts
        .headers
        .get_all(CONNECTION)
        .iter()
        .any(|value| has_token(value, "upgrade"));
    if plain_get && asked && protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
        Upgrade::Websocket
    } else {
        Upgrade::Other
    }
}

/// Removes what `Connection` names, then the fields that are hop-by-hop by nature. Runs before
/// the chain, so nothing that an addon adds can be named away.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // Framing is ours to say; a client cannot name it away.
        .filter(|name| name != CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// The same for a response: one reading of where its body ends, nothing of the upstream's own
/// connection, and no word that is ours to say. An error says what the upstream did.
pub fn read_response_head(parts: &mut response::Parts) -> Result<(), &'static str> {
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {}
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            // hyper went by the chunks, and a client would go by the length.
            parts.headers.remove(CONTENT_LENGTH);
        }
        // What is left after hyper undid the chunks would be passed off as the body.
        _ => return Err("sent a body in a transfer coding other than chunked"),
    }
    // hyper has compared them all; a client gets one.
    let length = parts.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok());
    let length = length.and_then(|length| length.split(',').next()?.trim().parse::<u64>().ok());
    if let Some(length) = length {
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
    strip_hop_by_hop(&mut parts.headers);
    parts.headers.remove(X_PROXY_DENIED);
    Ok(())
}

/// Whether a CONNECT brings a body, which nobody could say the meaning of.
pub fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
}

/// Whether a comma-separated list has a token, whatever its case.
pub fn has_token(value: &HeaderValue, token: &str) -> bool {
    let text = value.to_str().unwrap_or_default();
    text.split(',')
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<(Request, Upgrade), Denial> {
        let mut builder = http::Request::get("/");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        read_head(builder.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn two_ways_to_find_the_end_of_a_body_are_refused() {
        for headers in [
            &[("content-length", "1"), ("content-length", "1")][..],
            &[("content-length", "1"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
            &[("transfer-encoding", "xchunked")],
            &[("content-length", "+1")],
            &[("content-length", "1, 1")],
        ] {
            assert!(read(headers).is_err(), "{headers:?}");
        }
        assert!(read(&[("transfer-encoding", "Chunked")]).is_ok());
    }

    #[test]
    fn what_connection_names_goes_but_never_the_framing() {
        let (request, _) = read(&[
            ("connection", "x-secret, authorization, content-length"),
            ("x-secret", "1"),
            ("authorization", "mine"),
            ("content-length", "0"),
            ("proxy-authorization", "Basic x"),
        ])
        .unwrap();
        let names: Vec<_> = request.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-length"]);
    }

    #[test]
    fn only_a_websocket_is_an_upgrade_that_passes() {
        let upgrade = |protocol| {
            read(&[("connection", "Upgrade"), ("upgrade", protocol)])
                .unwrap()
                .1
        };
        assert_eq!(upgrade("WebSocket"), Upgrade::Websocket);
        assert_eq!(upgrade("h2c"), Upgrade::Other);
        assert_eq!(upgrade("websocket, h2c"), Upgrade::Other);
        assert_eq!(read(&[("upgrade", "websocket")]).unwrap().1, Upgrade::Other);
    }
}
