//! Message framing and hop-by-hop fields, which belong to one connection and are not forwarded.

use addons::contract::{Denial, Path, Request};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::response;
use http::{Method, Version};

/// The longest path with its query, in bytes.
const MAX_TARGET: usize = 8 * 1024;

/// Response field with the code of the proxy's denial.
pub const X_PROXY_DENIED: HeaderName = HeaderName::from_static("x-proxy-denied");

static HOP_BY_HOP: [HeaderName; 9] = [
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

/// The fields of a message that this module handles, as bits. Computed in one pass over the names
/// of the message. A look-up for each field would hash 13 names for every message.
#[derive(Clone, Copy)]
struct FieldSet(u16);

impl FieldSet {
    const ANY_HOP_BY_HOP: u16 = 0x1ff;

    fn of(headers: &HeaderMap) -> Self {
        let bits = headers.keys().map(Self::bit);
        Self(bits.fold(0, |all, bit| all | bit))
    }

    fn bit(name: &HeaderName) -> u16 {
        match name.as_str() {
            "connection" => 1,
            "upgrade" => 1 << 1,
            "te" => 1 << 2,
            "transfer-encoding" => 1 << 3,
            "expect" => 1 << 4,
            "proxy-authenticate" => 1 << 5,
            "proxy-authorization" => 1 << 6,
            "keep-alive" => 1 << 7,
            "proxy-connection" => 1 << 8,
            "host" => 1 << 9,
            "content-length" => 1 << 10,
            "trailer" => 1 << 11,
            "x-proxy-denied" => 1 << 12,
            _ => 0,
        }
    }

    fn has(self, name: &HeaderName) -> bool {
        self.0 & Self::bit(name) != 0
    }

    fn remove(self, headers: &mut HeaderMap, name: &HeaderName) {
        if self.has(name) {
            headers.remove(name);
        }
    }
}

/// The protocol that a client asked to upgrade to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    None,
    Websocket,
    /// Any other protocol, for example HTTP/2 in clear text (h2c). Also a WebSocket upgrade that is
    /// not an HTTP/1.1 GET with `Connection: upgrade`.
    Other,
}

/// Reads a request head into the chain's form. Denies ambiguous framing and a target over 8 KiB.
/// Removes `Host`, `Trailer`, the hop-by-hop fields except `TE: trailers`, and the fields that
/// `Connection` names except `Content-Length`.
pub fn read_head(parts: &mut Parts) -> Result<(Request, Upgrade), Denial> {
    let fields = FieldSet::of(&parts.headers);
    let content_length = check_framing(parts, fields)?;
    let target_length = parts.uri.path().len() + parts.uri.query().map_or(0, str::len);
    if target_length > MAX_TARGET {
        return Err(Denial::malformed(format!(
            "the path and query have {target_length} bytes, and the limit is {MAX_TARGET}"
        )));
    }
    let upgrade = match fields.has(&UPGRADE) {
        true => requested_upgrade(parts),
        false => Upgrade::None,
    };
    let mut headers = std::mem::take(&mut parts.headers);
    let te = fields.has(&TE).then(|| headers.get(TE)).flatten();
    let wants_trailers = te.is_some_and(|te| has_token(te, "trailers"));
    strip(&mut headers, fields);
    fields.remove(&mut headers, &HOST);
    // Trailers of requests are dropped, so no field announces them.
    fields.remove(&mut headers, &TRAILER);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    let path = Path::parse(parts.uri.path());
    let query = parts.uri.query().map(Into::into);
    let method = std::mem::take(&mut parts.method);
    let mut request = Request::new(method, path, query, headers);
    request.content_length = content_length;
    request.websocket = upgrade == Upgrade::Websocket;
    Ok((request, upgrade))
}

/// Returns the `Content-Length`. Denies a head from which two peers may infer different body
/// lengths. hyper has rejected most such heads. It accepts some that RFC 9112, section 6.3 resolves
/// by precedence. They are denied here, since a peer that resolves them differently allows request
/// smuggling.
fn check_framing(parts: &Parts, fields: FieldSet) -> Result<Option<u64>, Denial> {
    if !fields.has(&CONTENT_LENGTH) && !fields.has(&TRANSFER_ENCODING) {
        return Ok(None);
    }
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

/// Removes the fields that `Connection` names, except `Content-Length`, then the hop-by-hop fields.
/// Runs before the chain, so that a peer's `Connection` cannot remove a field that an addon adds.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    strip(headers, FieldSet::of(headers));
}

fn strip(headers: &mut HeaderMap, fields: FieldSet) {
    if fields.has(&CONNECTION) {
        strip_named(headers);
    }
    if fields.0 & FieldSet::ANY_HOP_BY_HOP != 0 {
        for name in &HOP_BY_HOP {
            fields.remove(headers, name);
        }
    }
}

fn strip_named(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // The proxy frames the message; a peer cannot remove its length.
        .filter(|name| name != CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Removes hop-by-hop fields, the fields that `Connection` names, and `x-proxy-denied` from a
/// response head. Leaves at most one `Content-Length`, and none beside a transfer coding. Fails for
/// a transfer coding other than chunked; the error completes the sentence "HOST …".
pub fn read_response_head(parts: &mut response::Parts) -> Result<(), &'static str> {
    let headers = &mut parts.headers;
    let fields = FieldSet::of(headers);
    if fields.has(&TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        match (codings.next(), codings.next()) {
            (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
                // hyper reads the chunks and ignores the length; a client would use the length.
                headers.remove(CONTENT_LENGTH);
            }
            // hyper removes only the chunked coding. The body would still be in the other coding.
            _ => return Err("sent a body in a transfer coding other than chunked"),
        }
    }
    if fields.has(&CONTENT_LENGTH) {
        one_length(headers);
    }
    strip(headers, fields);
    fields.remove(headers, &X_PROXY_DENIED);
    Ok(())
}

/// Replaces a list of lengths, or repeated fields, by a single `Content-Length`. hyper has checked
/// that the lengths are equal.
fn one_length(headers: &mut HeaderMap) {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let (Some(first), second) = (lengths.next(), lengths.next()) else {
        return;
    };
    let text = first.to_str().unwrap_or_default();
    let is_plain = second.is_none() && text.bytes().all(|byte| byte.is_ascii_digit());
    let first = text.split(',').next().unwrap_or_default();
    if !is_plain && let Ok(length) = first.trim().parse::<u64>() {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

/// Whether the head of a CONNECT announces content, which a CONNECT must not have (RFC 9110,
/// section 9.3.6).
pub fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
}

/// Whether a comma-separated list contains a token; ignores case.
pub fn has_token(value: &HeaderValue, token: &str) -> bool {
    let text = value.to_str().unwrap_or_default();
    text.split(',')
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<(Request, Upgrade), Denial> {
        let mut builder = http::Request::get("/");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        read_head(&mut builder.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn ambiguous_framing_is_denied() {
        each_row(
            [
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
            ],
            |headers| {
                assert!(read(headers).is_err(), "{headers:?}");
            },
        );
        assert!(read(&[("transfer-encoding", "Chunked")]).is_ok());
    }

    #[test]
    fn hop_by_hop_fields_and_fields_named_by_connection_except_content_length_are_removed() {
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
    fn a_websocket_upgrade_names_websocket_alone_and_needs_connection_upgrade() {
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
