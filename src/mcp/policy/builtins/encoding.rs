//! Base64, hexadecimal digits and URL queries, as in Go's `encoding/base64`, `encoding/hex` and
//! `net/url`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::{Alphabet, STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use regorus::Value;

use super::json::key_text;
use super::{Outcome, Stop, object, string, unsupported};

pub fn base64_decode(text: &Value) -> Outcome {
    utf8(base64(string(text)?, &STANDARD)?)
}

pub fn base64_is_valid(text: &Value) -> Outcome {
    let valid = string(text).is_ok_and(|text| base64(text, &STANDARD).is_ok());
    Ok(Value::from(valid))
}

pub fn base64url_decode(text: &Value) -> Outcome {
    let text = string(text)?;
    let padding = match text.len() % 4 {
        _ if text.ends_with('=') => "",
        2 => "==",
        3 => "=",
        0 => "",
        _ => return Err(Stop::Undefined),
    };
    utf8(base64(&format!("{text}{padding}"), &URL_SAFE)?)
}

/// Decodes text with padding. Go skips line breaks and ignores the unused bits of the last digit.
fn base64(text: &str, alphabet: &Alphabet) -> Result<Vec<u8>, Stop> {
    let config = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical);
    let engine = GeneralPurpose::new(alphabet, config);
    let decoded = engine.decode(text.replace(['\r', '\n'], ""));
    decoded.map_err(|_| Stop::Undefined)
}

pub fn hex_decode(text: &Value) -> Outcome {
    let pairs = string(text)?.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| match pair {
        [high, low] => hex_byte(*high, *low),
        _ => None,
    });
    utf8(bytes.collect::<Option<_>>().ok_or(Stop::Undefined)?)
}

fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// A string of Rego. OPA's strings may have bytes that are not UTF-8, those of regorus may not.
fn utf8(bytes: Vec<u8>) -> Outcome {
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Value::from(text)),
        Err(_) => unsupported("the decoded bytes are not UTF-8"),
    }
}

pub fn urlquery_encode(text: &Value) -> Outcome {
    let mut query = String::new();
    push_escaped(&mut query, string(text)?);
    Ok(Value::from(query))
}

pub fn urlquery_encode_object(fields: &Value) -> Outcome {
    let mut sorted = BTreeMap::new();
    for (key, value) in object(fields)?.iter() {
        let values = match value {
            Value::String(text) => vec![&**text],
            _ => super::elements(value)?
                .into_iter()
                .map(string)
                .collect::<Result<_, _>>()?,
        };
        sorted.insert(key_text(key), values);
    }
    let mut query = String::new();
    for (key, values) in &sorted {
        for value in values {
            if !query.is_empty() {
                query.push('&');
            }
            push_escaped(&mut query, key);
            query.push('=');
            push_escaped(&mut query, value);
        }
    }
    Ok(Value::from(query))
}

fn push_escaped(query: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b' ' => query.push('+'),
            b'-' | b'_' | b'.' | b'~' => query.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => query.push(byte.into()),
            _ => query.push_str(&format!("%{byte:02X}")),
        }
    }
}

pub fn urlquery_decode(text: &Value) -> Outcome {
    utf8(unescape(string(text)?)?)
}

pub fn urlquery_decode_object(text: &Value) -> Outcome {
    let mut fields = BTreeMap::<Value, Vec<Value>>::new();
    for pair in string(text)?.split('&').filter(|pair| !pair.is_empty()) {
        if pair.contains(';') {
            return Err(Stop::Undefined);
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (utf8(unescape(key)?)?, utf8(unescape(value)?)?);
        fields.entry(key).or_default().push(value);
    }
    let fields = fields.into_iter().map(|(key, values)| (key, values.into()));
    Ok(Value::from(fields.collect::<BTreeMap<_, _>>()))
}

fn unescape(text: &str) -> Result<Vec<u8>, Stop> {
    let mut bytes = text.bytes();
    let mut unescaped = Vec::new();
    while let Some(byte) = bytes.next() {
        unescaped.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = bytes.next().zip(bytes.next()).ok_or(Stop::Undefined)?;
                hex_byte(high, low).ok_or(Stop::Undefined)?
            }
            _ => byte,
        });
    }
    Ok(unescaped)
}
