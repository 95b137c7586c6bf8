//! The canonical form of JSON (RFC 8785).
//!
//! There are two deviations. A number with more than 15 significant digits stays as written: a double
//! may not hold its digits, and RFC 8785 would give two different numbers, such as two ids or two
//! amounts, the same text. A number beyond the range of a double also stays as written, since
//! RFC 8785 has no form for it.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};

use super::node::{write_array, write_object};
use super::{Node, write_string};

/// A double holds every number with this many significant digits.
const EXACT_DIGITS: usize = 15;

/// The canonical text of a value.
#[must_use]
pub fn canonical(node: &Node<'_>) -> String {
    let mut out = String::with_capacity(256);
    write(node, &mut out);
    out
}

/// The SHA-256 of a text, in hexadecimal.
#[must_use]
pub fn sha256_hex(text: &str) -> String {
    let hash = digest(&SHA256, text.as_bytes());
    let nibbles = hash.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = nibbles.filter_map(|nibble| char::from_digit(u32::from(nibble), 16));
    let mut hex = String::with_capacity(64);
    hex.extend(digits);
    hex
}

fn write(node: &Node<'_>, out: &mut String) {
    match node {
        Node::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
            write_object(sorted.into_iter(), write, out);
        }
        Node::Array(elements) => write_array(elements, write, out),
        Node::Scalar(json) => match node.as_text() {
            Some(text) => write_string(&text, out),
            None => match json.parse::<f64>() {
                Ok(number) if json.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                    write_number(json, number, out);
                }
                _ => out.push_str(json),
            },
        },
    }
}

/// Writes a number as ECMAScript does (RFC 8785, section 3.2.2.3).
fn write_number(json: &str, number: f64, out: &mut String) {
    if !number.is_finite() || significant_digits(json) > EXACT_DIGITS {
        out.push_str(json);
        return;
    }
    if number == 0.0 {
        out.push('0');
        return;
    }
    // The shortest digits that read as the same double, such as `1.5e30` or `1.5e-7`.
    let shortest = format!("{number:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-6..21).contains(&exponent) {
        // Rust writes the shortest digits without an exponent.
        let _ = write!(out, "{number}");
        return;
    }
    let sign = if exponent > 0 { "+" } else { "" };
    let _ = write!(out, "{mantissa}e{sign}{exponent}");
}

/// The number of digits before the exponent, without leading zeros.
fn significant_digits(json: &str) -> usize {
    let mantissa = json.split(['e', 'E']).next().unwrap_or_default();
    let digits = mantissa.chars().filter(char::is_ascii_digit);
    digits.skip_while(|digit| *digit == '0').count()
}
