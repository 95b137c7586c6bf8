//! Values as JSON, appended to a line.
//!
//! Written by hand, since every flow has a line: text without escapes is copied, the rest goes
//! through serde_json.

use std::fmt::Display;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

use super::line::Excerpt;
use crate::contract::Host;

pub(super) fn number(out: &mut Vec<u8>, number: u64) {
    if let Ok(small) = u8::try_from(number) {
        return octet(out, small);
    }
    // Neither a number nor a `Vec` makes serde_json fail.
    let _ = serde_json::to_writer(out, &number);
}

/// Appends a string that may need escapes, which serde_json writes.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    if needs_escaping(text) {
        let _ = serde_json::to_writer(out, text);
    } else {
        word(out, text);
    }
}

fn needs_escaping(text: &str) -> bool {
    let special = |found, byte: &u8| found | (*byte < b' ') | (*byte == b'"') | (*byte == b'\\');
    // Every byte of a block is examined without an early exit, so that the compiler can vectorise
    // it.
    let (blocks, rest) = text.as_bytes().as_chunks::<8>();
    blocks.iter().any(|block| block.iter().fold(false, special)) || rest.iter().fold(false, special)
}

pub(super) fn excerpt(out: &mut Vec<u8>, excerpt: Excerpt<'_>) {
    text(out, excerpt.text);
    if excerpt.is_cut {
        out.pop();
        out.extend_from_slice("…\"".as_bytes());
    }
}

/// Appends a string that needs no escapes: a constant, or text of a restricted grammar.
pub(super) fn word(out: &mut Vec<u8>, word: &str) {
    out.push(b'"');
    out.extend_from_slice(word.as_bytes());
    out.push(b'"');
}

pub(super) fn host(out: &mut Vec<u8>, host: Option<&Host>) {
    match host {
        None => word(out, "*"),
        Some(Host::Name(name)) => text(out, name),
        Some(Host::Address(at @ IpAddr::V4(_))) => {
            out.push(b'"');
            address(out, *at);
            out.push(b'"');
        }
        Some(Host::Address(at @ IpAddr::V6(_))) => {
            out.extend_from_slice(b"\"[");
            address(out, *at);
            out.extend_from_slice(b"]\"");
        }
    }
}

pub(super) fn address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            octet(out, a);
            for next in [b, c, d] {
                out.push(b'.');
                octet(out, next);
            }
        }
        IpAddr::V6(v6) => display(out, v6),
    }
}

fn octet(out: &mut Vec<u8>, octet: u8) {
    if octet >= 100 {
        out.push(b'0' + octet / 100);
    }
    if octet >= 10 {
        out.push(b'0' + octet / 10 % 10);
    }
    out.push(b'0' + octet % 10);
}

pub(super) fn socket_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            self::address(out, IpAddr::V4(*v4.ip()));
            out.push(b':');
            number(out, v4.port().into());
        }
        SocketAddr::V6(v6) => display(out, v6),
    }
}

/// Appends a rare value that needs no escapes.
fn display(out: &mut Vec<u8>, value: impl Display) {
    // Writing to a `Vec` does not fail.
    let _ = write!(out, "{value}");
}

/// The beginning of every line, `{"ts":"…","flow":"…",`, which has a fixed length.
pub(super) fn beginning(at: SystemTime, flow: u64) -> [u8; 59] {
    let mut text = *b"{\"ts\":\"2000-01-01T00:00:00.000Z\",\"flow\":\"0123456789abcdef\",";
    text[7..31].copy_from_slice(&rfc_3339(at));
    text[41..57].copy_from_slice(&hex::<16>(&flow.to_be_bytes()));
    text
}

/// Encodes bytes as lower-case hexadecimal digits, up to `DIGITS` of them.
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

/// Formats a time by RFC 3339, in UTC with milliseconds. A time before 1970 or out of range becomes
/// 1970-01-01.
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
