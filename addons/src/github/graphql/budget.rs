//! What one body may cost to judge.

use serde_json::Value;

use super::unreadable::Unreadable;

/// The most text of queries in one body: what people write goes in variables.
const MAX_TEXT: usize = 256 * 1024;

/// Blanks and commas count as well. The longest queries of GitHub's own tool have a fifth.
const MAX_TOKENS: usize = 8_000;

/// Fields seen and values filled in, fragments counted as often as they are used.
const MAX_STEPS: usize = 50_000;

/// Bytes of values filled in, variables counted as often as they are used.
const MAX_FILLED: usize = 2 * super::MAX_BODY;

/// Spent over all requests of one body.
pub(super) struct Budget {
    text: usize,
    tokens: usize,
    steps: usize,
    filled: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            text: MAX_TEXT,
            tokens: MAX_TOKENS,
            steps: MAX_STEPS,
            filled: MAX_FILLED,
        }
    }
}

impl Budget {
    /// The text of a query, before a token of it is read.
    pub(super) fn spend_text(&mut self, bytes: usize) -> Result<(), Unreadable> {
        spend(&mut self.text, bytes, "the queries are too long")
    }

    /// The tokens that may still be read.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens that were read.
    pub(super) fn spend_tokens(&mut self, count: usize) -> Result<(), Unreadable> {
        spend(&mut self.tokens, count, "the queries have too many tokens")
    }

    /// A field seen, or a value filled in.
    pub(super) fn spend_step(&mut self) -> Result<(), Unreadable> {
        spend(&mut self.steps, 1, "it takes too much to judge")
    }

    /// Bytes of a value filled in.
    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Unreadable> {
        spend(&mut self.filled, bytes, "it takes too much to judge")
    }

    /// A value that is about to be copied. Its depth is bounded by how it was read.
    pub(super) fn spend_value(&mut self, value: &Value) -> Result<(), Unreadable> {
        self.spend_step()?;
        match value {
            Value::String(text) => self.spend_bytes(text.len()),
            Value::Array(items) => items.iter().try_for_each(|item| self.spend_value(item)),
            Value::Object(members) => members.iter().try_for_each(|(key, value)| {
                self.spend_bytes(key.len())?;
                self.spend_value(value)
            }),
            _ => Ok(()),
        }
    }
}

fn spend(left: &mut usize, amount: usize, why: &str) -> Result<(), Unreadable> {
    let rest = left.checked_sub(amount);
    *left = rest.ok_or_else(|| Unreadable::new(format!("{why}; send less at once")))?;
    Ok(())
}
