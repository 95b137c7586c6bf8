//! The placeholders that containers see instead of secrets.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION};
use memchr::memmem;
use percent_encoding::percent_decode;

use crate::contract::{Code, Denial, Flow, Request, Verdict};

const PREFIX: &[u8] = b"up-placeholder-";
const DIGITS: usize = 32;

/// The placeholder of a credential. It is derived from the name alone, so it is not a secret.
#[must_use]
pub fn placeholder(name: &str) -> String {
    // FNV-1a suffices: placeholders must only be stable, and different for different names.
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mix = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let hash = name.bytes().fold(BASIS, mix);
    format!("up-placeholder-{hash:032x}")
}

/// Whether the text contains a placeholder.
#[must_use]
pub fn is_placeholder(text: &str) -> bool {
    contains_placeholder(text.as_bytes())
}

/// Denies a request that has a placeholder in its path, its query or a header field. Must be called
/// for each request to which no credential applies: no secret would replace the placeholder, and
/// the upstream must not see it.
pub(super) fn refuse(flow: &Flow, request: &Request) -> Verdict {
    if !has_placeholder(request) {
        return Ok(());
    }
    let sentence = format!(
        "Credential misuse: a placeholder was sent to {}:{} over {}, and no credential applies to this request",
        flow.host(),
        flow.port(),
        flow.scheme().as_str()
    );
    Err(Denial::new(Code::CredentialMisuse, sentence)
        .rule("placeholder")
        .hint(format!(
            "a secret replaces the placeholder only over TLS, and only if an entry in credentials.yaml lists {}:{} and applies to this container and repository",
            flow.host(),
            flow.port()
        )))
}

fn has_placeholder(request: &Request) -> bool {
    let query = request.query.as_deref().unwrap_or_default();
    let decoded: Cow<'_, [u8]> = percent_decode(query.as_bytes()).into();
    contains_placeholder(&decoded)
        || contains_placeholder(request.path.normal().as_bytes())
        || request
            .headers
            .values()
            .any(|value| contains_placeholder(value.as_bytes()))
        || has_basic_placeholder(&request.headers)
}

fn contains_placeholder(mut text: &[u8]) -> bool {
    while let Some(at) = memmem::find(text, PREFIX) {
        text = text.get(at + PREFIX.len()..).unwrap_or_default();
        let digits = text.get(..DIGITS);
        if digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return true;
        }
    }
    false
}

fn has_basic_placeholder(headers: &HeaderMap) -> bool {
    [AUTHORIZATION, PROXY_AUTHORIZATION]
        .iter()
        .flat_map(|name| headers.get_all(name))
        .filter_map(|value| {
            let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
            let encoded = scheme.eq_ignore_ascii_case("basic").then_some(encoded)?;
            STANDARD.decode(encoded.trim()).ok()
        })
        .any(|decoded| contains_placeholder(&decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_recognised_stable_and_distinct() {
        let names = ["a", "b", "ab", "ba", "anthropic", "openai"];
        let all: std::collections::HashSet<_> =
            names.iter().map(|name| placeholder(name)).collect();
        assert_eq!(all.len(), names.len());
        assert!(all.iter().all(|one| is_placeholder(one)));
        // FNV-1a of "a", as listed by its authors.
        assert_eq!(
            placeholder("a"),
            "up-placeholder-d228cb696f1a8caf78912b704e4a8964"
        );
    }
}
