//! The forms of a secret: the encodings in which it is recognized in a response.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use zeroize::Zeroizing;

/// The length of the shortest base64 form, in bytes: a shorter one would match unrelated text.
const MIN_BASE64: usize = 6;

/// The forms of several secrets, sorted, each with the name of its credential.
#[derive(Default)]
pub(super) struct Forms(pub(super) Vec<(Zeroizing<Vec<u8>>, Box<str>)>);

impl Forms {
    /// Adds the secret itself, and its forms in JSON, URLs and base64.
    pub(super) fn add_secret(&mut self, secret: &[u8], name: &str) {
        if secret.is_empty() {
            return;
        }
        self.insert(secret.to_vec(), name);
        self.insert(escape_json(secret, false), name);
        self.insert(escape_json(secret, true), name);
        for hex in [b"0123456789ABCDEF", b"0123456789abcdef"] {
            for kept in KEPT {
                let keeps = |byte: u8| byte.is_ascii_alphanumeric() || kept.contains(&byte);
                self.insert(escape_url(secret, hex, keeps), name);
            }
            self.insert(escape_url(secret, hex, |_| false), name);
        }
        self.add_base64(secret, name);
    }

    /// Adds the forms that the secret has in the base64 of a longer text. Base64 encodes groups of
    /// three bytes, so there is a form for each position in a group at which the secret may begin.
    pub(super) fn add_base64(&mut self, secret: &[u8], name: &str) {
        for before in 0..3 {
            let mut data = Zeroizing::new(vec![0; before]);
            data.extend_from_slice(secret);
            // A character that also encodes bits of a neighbouring byte is unknown and left out.
            // If the text ends with the secret, the last character is known: a second form includes
            // it, and a third form the padding as well.
            let first = (before * 8).div_ceil(6);
            let whole = data.len() * 8 / 6;
            let partial = (data.len() * 8).div_ceil(6);
            for encoded in [STANDARD.encode(&*data), URL_SAFE.encode(&*data)] {
                let encoded = Zeroizing::new(encoded.into_bytes());
                for end in [whole, partial, encoded.len()] {
                    if let Some(form) = encoded.get(first..end)
                        && form.len() >= MIN_BASE64
                    {
                        self.insert(form.to_vec(), name);
                    }
                }
            }
        }
    }

    fn insert(&mut self, form: Vec<u8>, name: &str) {
        let form = Zeroizing::new(form);
        if let Err(place) = self.0.binary_search_by(|(other, _)| (**other).cmp(&form)) {
            self.0.insert(place, (form, name.into()));
        }
    }
}

/// Bytes besides letters and digits that an encoder does not escape, a row for each encoder: RFC
/// 3986, a path, JavaScript's `encodeURIComponent` and `encodeURI`, HTML forms (which write a space
/// as `+`), and an encoder that escapes all of them.
const KEPT: [&[u8]; 6] = [
    b"-_.~",
    b"-_.~/",
    b"-_.~!*'()",
    b"-_.~!*'();,/?:@&=+$#",
    b"-_.* ",
    b"",
];

fn escape_url(secret: &[u8], hex: &[u8; 16], keeps: impl Fn(u8) -> bool) -> Vec<u8> {
    let digit = |nibble: u8| hex.get(usize::from(nibble)).copied().unwrap_or_default();
    let mut out = Vec::with_capacity(secret.len() * 3);
    for byte in secret {
        match byte {
            b' ' if keeps(b' ') => out.push(b'+'),
            _ if keeps(*byte) => out.push(*byte),
            _ => out.extend([b'%', digit(byte >> 4), digit(byte & 15)]),
        }
    }
    out
}

fn escape_json(secret: &[u8], slashes: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(secret.len() * 2);
    for byte in secret {
        if matches!(byte, b'"' | b'\\') || (slashes && *byte == b'/') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}
