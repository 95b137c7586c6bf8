//! The tokens of large files, which sandboxes use once and never see.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::contract::{Container, Flow, Host, Request, Scheme};

/// Tokens that a lease keeps at most, and their bytes together: the oldest are forgotten, and
/// their files asked for again.
const KEPT: usize = 4096;
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// The longest token, and the longest name of a field for one, in bytes: a header with more would
/// be taken nowhere.
const MAX_TOKEN: usize = 16 * 1024;
const MAX_FIELD: usize = 256;

/// Fields of one request that may stand for tokens: each is looked up among all that are kept.
const MAX_REDEEMED: usize = 8;

/// What a placeholder begins with; a whole value stands for a token.
const PREFIX: &str = "up-placeholder-";

/// Names them in the audit.
const NAME: &str = "git-lfs";

/// What a lease owns.
#[derive(Default)]
struct Tokens(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The oldest first.
    tokens: VecDeque<Token>,
    /// What they take together.
    bytes: usize,
}

impl Token {
    fn size(&self) -> usize {
        size_of::<Self>() + self.placeholder.len() + self.field.as_str().len() + self.value.len()
    }
}

impl Kept {
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

/// Keeps a token for the one request to `host` that it is for, and answers what stands for it;
/// `None` where it is too long for a token.
pub(super) fn keep(
    container: &Container,
    (host, port): (&Host, u16),
    field: HeaderName,
    value: &str,
) -> Option<String> {
    if value.len() > MAX_TOKEN || field.as_str().len() > MAX_FIELD {
        return None;
    }
    // It must be told apart from others. It need not be hard to guess: it is of use to nobody
    // but the container that was given it.
    let half = || RandomState::new().build_hasher().finish();
    let placeholder = format!("{PREFIX}{:016x}{:016x}", half(), half());
    let tokens = container.state_or_init(Tokens::default);
    tokens.0.lock().push(Token {
        placeholder: placeholder.clone(),
        host: host.clone(),
        port,
        field,
        value: Zeroizing::new(value.to_owned()),
    });
    Some(placeholder)
}

/// Puts tokens where the request has what stands for them, if it goes where they are for, over
/// TLS. Each works once.
pub(in crate::git) fn redeem(flow: &mut Flow, request: &mut Request) {
    let Some(container) = flow.known_container() else {
        return;
    };
    let none = !request.headers.values().any(stands_for_one);
    if none || flow.scheme() != Scheme::Https {
        return;
    }
    if flow.effect(|| spend(container, flow, request)) == Some(true) {
        flow.add_credential(&NAME.into());
    }
}

fn stands_for_one(value: &HeaderValue) -> bool {
    value.as_bytes().starts_with(PREFIX.as_bytes())
}

/// Replaces placeholders by their tokens, which are used up; answers whether there was one.
fn spend(container: &Container, flow: &Flow, request: &mut Request) -> bool {
    let tokens = container.state_or_init(Tokens::default);
    let mut tokens = tokens.0.lock();
    let mut redeemed = false;
    let standing_for_one = |(_, sent): &(_, &mut HeaderValue)| stands_for_one(sent);
    let fields = request.headers.iter_mut().filter(standing_for_one);
    for (field, sent) in fields.take(MAX_REDEEMED) {
        let is_it = |token: &Token| {
            (&token.host, token.port) == (flow.host(), flow.port())
                && token.field == *field
                && token.placeholder.as_bytes() == sent.as_bytes()
        };
        let found = tokens.tokens.iter().position(is_it);
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
