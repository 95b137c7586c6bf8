//! Values as JSON, appended to a line.
//!
//! serde_json writes the values. The encoder of a line writes the keys and all punctuation. A
//! struct that derives `Serialize` costs 3,500 instructions more for the line of a request (3.7 %
//! of the request), and 3,100 more for the line of a denied DNS question (6.8 % of the question).
//! The instructions were counted with callgrind over 500 lines.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use time::OffsetDateTime;

use super::line::Excerpt;
use crate::contract::{FlowId, Host};

/// Appends a member. `key` includes the quotes, the comma before them and the colon after them.
pub(super) fn member(out: &mut Vec<u8>, key: &str, value: impl Serialize) {
    out.extend_from_slice(key.as_bytes());
    // Serializing these values cannot fail, nor can writing to a `Vec`.
    let _ = serde_json::to_writer(out, &value);
}

/// Appends a member if there is a value.
pub(super) fn optional(out: &mut Vec<u8>, key: &str, value: Option<impl Serialize>) {
    if let Some(value) = value {
        member(out, key, value);
    }
}

/// Appends a text, with an ellipsis at its end if the text was cut.
pub(super) fn excerpt(out: &mut Vec<u8>, key: &str, excerpt: Option<Excerpt<'_>>) {
    if let Some(Excerpt { text, is_cut }) = excerpt {
        member(out, key, text);
        if is_cut {
            out.pop();
            out.extend_from_slice("…\"".as_bytes());
        }
    }
}

/// Appends a host; `*` for none.
pub(super) fn host(out: &mut Vec<u8>, key: &str, host: Option<&Host>) {
    match host {
        None => member(out, key, "*"),
        Some(Host::Name(name)) => member(out, key, &**name),
        Some(address) => member(out, key, address.to_string()),
    }
}

/// Appends an address with its port if there is one.
///
/// serde writes an IPv4 address digit by digit, but an address with a port through `fmt`, which
/// costs 1,100 instructions more for every request (callgrind over 1,000 requests).
pub(super) fn socket_address(out: &mut Vec<u8>, key: &str, address: Option<SocketAddr>) {
    let Some(SocketAddr::V4(address)) = address else {
        return optional(out, key, address);
    };
    member(out, key, address.ip());
    out.pop();
    member(out, ":", address.port());
    out.push(b'"');
}

/// Appends the beginning of every line: `{"ts":"…","flow":"…"`.
pub(super) fn beginning(out: &mut Vec<u8>, at: SystemTime, flow: FlowId) {
    out.extend_from_slice(b"{\"ts\":\"");
    out.extend_from_slice(&rfc_3339(at));
    out.extend_from_slice(b"\",\"flow\":\"");
    out.extend_from_slice(&hex::<16>(&flow.number().to_be_bytes()));
    out.push(b'"');
}

/// Encodes bytes as `DIGITS` lower-case hexadecimal digits. Bytes that do not fit are left out, and
/// digits without a byte are zeros.
#[must_use]
pub fn hex<const DIGITS: usize>(bytes: &[u8]) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    let (pairs, _) = digits.as_chunks_mut();
    for (pair, byte) in pairs.iter_mut().zip(bytes) {
        *pair = [hex_digit(byte >> 4), hex_digit(byte & 15)];
    }
    digits
}

fn hex_digit(nibble: u8) -> u8 {
    let first = if nibble < 10 { b'0' } else { b'a' - 10 };
    first + nibble
}

/// Formats a time by RFC 3339, in UTC with milliseconds. A time before 1970 or after the year 9999
/// gets the date 1970-01-01.
///
/// Written digit by digit: a format description of the crate `time` costs 1,470 instructions more
/// for every audit line, 1.5 % of a request and 3.2 % of a DNS question (callgrind over 500 lines).
#[must_use]
pub fn rfc_3339(at: SystemTime) -> [u8; 24] {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let second = i64::try_from(since.as_secs()).unwrap_or_default();
    let at = OffsetDateTime::from_unix_timestamp(second).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    let year = year.unsigned_abs();
    let [y1, y2] = two_digits((year / 100) as u8);
    let [y3, y4] = two_digits((year % 100) as u8);
    let [o1, o2] = two_digits(month.into());
    let [d1, d2] = two_digits(day);
    let [h1, h2] = two_digits(hour);
    let [m1, m2] = two_digits(minute);
    let [s1, s2] = two_digits(second);
    let millisecond = since.subsec_millis();
    let [f1, f2] = two_digits((millisecond / 10) as u8);
    let f3 = b'0' + (millisecond % 10) as u8;
    [
        y1, y2, y3, y4, b'-', o1, o2, b'-', d1, d2, b'T', h1, h2, b':', m1, m2, b':', s1, s2, b'.',
        f1, f2, f3, b'Z',
    ]
}

fn two_digits(number: u8) -> [u8; 2] {
    [b'0' + number / 10 % 10, b'0' + number % 10]
}
