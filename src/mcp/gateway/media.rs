//! Checks `Accept` and `Content-Type`.

use addons::contract::{Code, Denial};
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use super::refusal::{JSON, refuse};

pub const EVENT_STREAM: &str = "text/event-stream";

/// Refuses a body that the headers do not declare as uncompressed JSON.
pub fn check_body(headers: &HeaderMap) -> Result<(), Denial> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let named = types.next().and_then(|value| value.to_str().ok());
    let is_json = named.is_some_and(|named| essence(named).eq_ignore_ascii_case(JSON));
    if is_json && types.next().is_none() && !headers.contains_key(CONTENT_ENCODING) {
        return Ok(());
    }
    let sentence = format!("Content-Type must be {JSON}, without a Content-Encoding");
    Err(Denial::new(Code::UnsupportedEncoding, sentence))
}

/// Refuses a request whose client does not accept this type.
pub fn check_accept(headers: &HeaderMap, media: &str) -> Result<(), Denial> {
    if accepts(headers, media) {
        return Ok(());
    }
    let sentence = format!("Not Acceptable: Accept must list {media}");
    Err(refuse(StatusCode::NOT_ACCEPTABLE, None, sentence))
}

/// Whether a client accepts streams of events. The protocol requires it of a POST, but clients
/// without streams exist.
pub fn accepts_events(headers: &HeaderMap) -> bool {
    accepts(headers, EVENT_STREAM)
}

/// Whether a client that accepts both types lists the event stream first, for example because it
/// wants a resumable stream.
pub fn prefers_events(headers: &HeaderMap) -> bool {
    let first = ranges(headers)
        .filter(|range| !is_refused(range))
        .map(essence)
        .find(|named| named.eq_ignore_ascii_case(JSON) || named.eq_ignore_ascii_case(EVENT_STREAM));
    first.is_some_and(|first| first.eq_ignore_ascii_case(EVENT_STREAM))
}

/// Whether a media type is acceptable. Without `Accept`, every type is acceptable. Of the ranges
/// that match the type, the most specific one counts (RFC 9110, section 12.5.1).
fn accepts(headers: &HeaderMap, media: &str) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let family = media.split('/').next().unwrap_or_default();
    let matching = ranges(headers).filter_map(|range| {
        let named = essence(range);
        let of_family = named.strip_suffix("/*");
        let precision = match of_family {
            Some("*") => 0,
            Some(named) if named.eq_ignore_ascii_case(family) => 1,
            None if named.eq_ignore_ascii_case(media) => 2,
            _ => return None,
        };
        Some((precision, !is_refused(range)))
    });
    matching
        .max()
        .is_some_and(|(_, is_acceptable)| is_acceptable)
}

/// The media ranges of `Accept`, with their parameters.
fn ranges(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(ACCEPT).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(','))
}

/// A media type or range without its parameters.
fn essence(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

/// Whether a range has `q=0`.
fn is_refused(range: &str) -> bool {
    let mut parameters = range.split(';').skip(1).map(str::trim);
    let weight = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    weight.is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use testkit::each_row;

    use super::*;

    fn headers(fields: &[(http::HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.clone(), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn json_must_be_acceptable_and_a_stream_of_events_may_be() {
        each_row(
            [
                ("application/json, text/event-stream", true, true),
                ("text/event-stream,application/json", true, true),
                ("*/*", true, true),
                ("application/*;q=0.5, text/*", true, true),
                (
                    "Application/JSON; charset=utf-8, TEXT/event-stream",
                    true,
                    true,
                ),
                ("application/json", true, false),
                ("text/event-stream", false, true),
                ("application/json, text/event-stream;q=0", true, false),
                ("*/*, text/event-stream; q=0.000", true, false),
                (
                    "text/event-stream;q=0, application/json, */*;q=0.1",
                    true,
                    false,
                ),
                ("application/json, text/*;q=0, */*", true, false),
                (
                    "application/json, text/*;q=0, text/event-stream",
                    true,
                    true,
                ),
                ("*/*;q=0", false, false),
                (
                    "*/*;q=0, application/json, text/event-stream;q=0.001",
                    true,
                    true,
                ),
                ("text/html", false, false),
                ("", false, false),
            ],
            |(accept, json, events)| {
                let headers = headers(&[(ACCEPT, accept)]);
                assert_eq!(check_accept(&headers, JSON).is_ok(), json, "{accept}");
                assert_eq!(accepts_events(&headers), events, "{accept}");
            },
        );
        assert!(check_accept(&HeaderMap::new(), JSON).is_ok());
        assert!(accepts_events(&HeaderMap::new()));
        let refused = check_accept(&headers(&[(ACCEPT, "text/html")]), JSON);
        assert_eq!(refused.unwrap_err().answer().unwrap().status, 406);
    }

    #[test]
    fn the_first_listed_type_is_preferred() {
        each_row(
            [
                ("text/event-stream, application/json", true),
                ("*/*, Text/Event-Stream", true),
                ("text/event-stream;q=0, application/json", false),
                ("application/json;q=0, text/event-stream", true),
                ("application/json, text/event-stream", false),
                ("*/*", false),
            ],
            |(accept, events)| {
                assert_eq!(
                    prefers_events(&headers(&[(ACCEPT, accept)])),
                    events,
                    "{accept}"
                );
            },
        );
    }

    #[test]
    fn a_body_must_be_uncompressed_json() {
        each_row(
            [
                (&[(CONTENT_TYPE, "application/json")][..], true),
                (&[(CONTENT_TYPE, "application/JSON; charset=utf-8")], true),
                (&[], false),
                (&[(CONTENT_TYPE, "text/plain")], false),
                (&[(CONTENT_TYPE, "application/json-rpc")], false),
                (
                    &[
                        (CONTENT_TYPE, "application/json"),
                        (CONTENT_TYPE, "text/plain"),
                    ],
                    false,
                ),
                (
                    &[
                        (CONTENT_TYPE, "application/json"),
                        (CONTENT_ENCODING, "gzip"),
                    ],
                    false,
                ),
            ],
            |(fields, passes)| assert_eq!(check_body(&headers(fields)).is_ok(), passes),
        );
    }
}
