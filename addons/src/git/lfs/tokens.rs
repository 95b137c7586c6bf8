//! Keeps the tokens of LFS transfers. A container sees only placeholders, each of which it can use
//! once.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::contract::{Container, Flow, Host, Request, Scheme};

/// Limits on the tokens that a lease keeps: their number, and the sum of their bytes. Beyond a
/// limit, the oldest tokens are dropped. To transfer their files, the client must repeat the batch
/// call.
const KEPT: usize = 4096;
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// The longest token and the longest field name in bytes. A field beyond either limit is removed
/// from the response, since most servers would refuse such a field.
const MAX_TOKEN: usize = 16 * 1024;
const MAX_FIELD: usize = 256;

/// Limit on the placeholders that are looked up for one request, since each look-up scans all
/// tokens of the lease. Further placeholders are not replaced.
const MAX_REDEEMED: usize = 8;

/// The prefix of a placeholder. A placeholder works only as the whole value of a field.
const PREFIX: &str = "up-placeholder-";

/// The name of the credential in the audit and in metrics.
pub const CREDENTIAL: &str = "git-lfs";

#[derive(Default)]
struct Tokens {
    /// In order of age, the oldest first.
    tokens: VecDeque<Token>,
    /// The sum of [`Token::size`] of all tokens.
    bytes: usize,
}

impl Tokens {
    fn push(&mut self, token: Token) {
        self.bytes += token.size();
        self.tokens.push_back(token);
        while self.tokens.len() > KEPT || self.bytes > KEPT_BYTES {
            self.remove(0);
        }
    }

    fn remove(&mut self, at: usize) -> Option<Token> {
        let token = self.tokens.remove(at)?;
        self.bytes -= token.size();
        Some(token)
    }
}

struct Token {
    placeholder: String,
    host: Host,
    port: u16,
    field: HeaderName,
    value: Zeroizing<String>,
}

impl Token {
    /// The bytes of memory that the token occupies.
    fn size(&self) -> usize {
        size_of::<Self>() + self.placeholder.len() + self.field.as_str().len() + self.value.len()
    }
}

/// Keeps the value of a field for one request to this host and port, and returns its placeholder;
/// `None` if the value or the field's name is too long.
pub(super) fn keep(
    container: &Container,
    (host, port): (&Host, u16),
    field: HeaderName,
    value: &str,
) -> Option<String> {
    if value.len() > MAX_TOKEN || field.as_str().len() > MAX_FIELD {
        return None;
    }
    // A placeholder must be unique, but need not be hard to guess: only the container that received
    // it can use it.
    let half = || RandomState::new().build_hasher().finish();
    let placeholder = format!("{PREFIX}{:016x}{:016x}", half(), half());
    let tokens = container.state_or_init(Mutex::<Tokens>::default);
    tokens.lock().push(Token {
        placeholder: placeholder.clone(),
        host: host.clone(),
        port,
        field,
        value: Zeroizing::new(value.to_owned()),
    });
    Some(placeholder)
}

/// Replaces placeholders in the header of a request over TLS by their tokens. The token must have
/// been kept for the request's host and port, and for the field that holds the placeholder. Each
/// placeholder works once. If a placeholder was replaced, records `git-lfs` as a credential of the
/// flow.
pub(in crate::git) fn redeem(flow: &mut Flow, request: &mut Request) {
    let Some(container) = flow.known_container() else {
        return;
    };
    let none = !request.headers.values().any(is_placeholder);
    if none || flow.scheme() != Scheme::Https {
        return;
    }
    if flow.effect(|| spend(container, flow, request)) == Some(true) {
        flow.add_credential(&CREDENTIAL.into());
    }
}

fn is_placeholder(value: &HeaderValue) -> bool {
    value.as_bytes().starts_with(PREFIX.as_bytes())
}

/// Replaces placeholders by their tokens, and removes the tokens from the lease. Returns whether a
/// placeholder was replaced.
fn spend(container: &Container, flow: &Flow, request: &mut Request) -> bool {
    let tokens = container.state_or_init(Mutex::<Tokens>::default);
    let mut tokens = tokens.lock();
    let mut redeemed = false;
    let has_placeholder = |(_, sent): &(_, &mut HeaderValue)| is_placeholder(sent);
    let fields = request.headers.iter_mut().filter(has_placeholder);
    for (field, sent) in fields.take(MAX_REDEEMED) {
        let matches = |token: &Token| {
            (&token.host, token.port) == (flow.host(), flow.port())
                && token.field == *field
                && token.placeholder.as_bytes() == sent.as_bytes()
        };
        let found = tokens.tokens.iter().position(matches);
        let token = found.and_then(|at| tokens.remove(at));
        let value = token.and_then(|token| HeaderValue::from_str(&token.value).ok());
        if let Some(mut value) = value {
            value.set_sensitive(true);
            *sent = value;
            redeemed = true;
        }
    }
    redeemed
}
