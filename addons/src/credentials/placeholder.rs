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
    find(text.as_bytes()).is_some()
}

/// Denies a request that has a placeholder in its path, its query or a header field. Must be called
/// for each request to which no credential applies: no secret would replace the placeholder, and
/// the upstream must not see it. The rule of the denial is the
/// placeholder, which tells `run` the variable that contained it.
pub(super) fn refuse(flow: &Flow, request: &Request) -> Verdict {
    let Some(placeholder) = first_of(request) else {
        return Ok(());
    };
    let sentence = format!(
        "Credential misuse: a placeholder was sent to {}:{} over {}, and no credential applies to this request",
        flow.host(),
        flow.port(),
        flow.scheme().as_str()
    );
    Err(Denial::new(Code::CredentialMisuse, sentence)
        .rule(placeholder)
        .hint(format!(
            "a secret replaces the placeholder only over TLS, and only if an entry in credentials.yaml lists {}:{} and applies to this container and repository",
            flow.host(),
            flow.port()
        )))
}

fn first_of(request: &Request) -> Option<String> {
    let query = request.query.as_deref().unwrap_or_default();
    let decoded: Cow<'_, [u8]> = percent_decode(query.as_bytes()).into();
    find(&decoded)
        .or_else(|| find(request.path.normal().as_bytes()))
        .or_else(|| {
            request
                .headers
                .values()
                .find_map(|value| find(value.as_bytes()))
        })
        .or_else(|| find_basic(&request.headers))
}

fn find(text: &[u8]) -> Option<String> {
    memmem::find_iter(text, PREFIX).find_map(|at| {
        let found = text.get(at..at + PREFIX.len() + DIGITS)?;
        let digits = found.get(PREFIX.len()..)?;
        let is_placeholder = digits.iter().all(u8::is_ascii_hexdigit);
        is_placeholder.then(|| String::from_utf8_lossy(found).into_owned())
    })
}

fn find_basic(headers: &HeaderMap) -> Option<String> {
    [AUTHORIZATION, PROXY_AUTHORIZATION]
        .iter()
        .flat_map(|name| headers.get_all(name))
        .filter_map(|value| {
            let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
            let encoded = scheme.eq_ignore_ascii_case("basic").then_some(encoded)?;
            STANDARD.decode(encoded.trim()).ok()
        })
        .find_map(|decoded| find(&decoded))
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
