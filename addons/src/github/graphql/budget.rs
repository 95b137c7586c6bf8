//! Limits on the work that one body may cause.

use serde_json::Value;

use super::malformed;
use crate::contract::Verdict;

/// Limit on the bytes of query text in one body. User content belongs in variables.
const MAX_TEXT: usize = 256 * 1024;

/// Limit on the tokens in one body, whitespace and commas included. The longest queries of GitHub's
/// command-line tool have a fifth as many.
const MAX_TOKENS: usize = 8_000;

/// Limit on steps. Each visited selection (a field or a fragment) and each filled-in value is one
/// step. The selections in a fragment are visited again at each use of the fragment.
const MAX_STEPS: usize = 50_000;

/// Limit on the bytes of filled-in values. The value of a variable counts at each use of the
/// variable.
const MAX_FILLED: usize = 2 * super::MAX_BODY;

/// The remaining budget, shared by all requests of one body. Spending more than is left is an
/// error.
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
    /// Spends the text of a query, before its first token is read.
    pub(super) fn spend_text(&mut self, bytes: usize) -> Verdict {
        spend(&mut self.text, bytes, "the queries are too long")
    }

    /// Returns the number of tokens left.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Spends tokens that were read.
    pub(super) fn spend_tokens(&mut self, count: usize) -> Verdict {
        spend(&mut self.tokens, count, "the queries have too many tokens")
    }

    /// Spends one step, for a visited selection or a filled-in value.
    pub(super) fn spend_step(&mut self) -> Verdict {
        spend(&mut self.steps, 1, "the query is too complex to judge")
    }

    /// Spends the bytes of a filled-in value.
    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Verdict {
        spend(&mut self.filled, bytes, "the query is too complex to judge")
    }

    /// Spends the steps and the bytes of a JSON value before the value is copied. The depth limit
    /// of the JSON parser bounds the recursion.
    pub(super) fn spend_value(&mut self, value: &Value) -> Verdict {
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

fn spend(left: &mut usize, amount: usize, why: &str) -> Verdict {
    let rest = left.checked_sub(amount);
    *left = rest.ok_or_else(|| malformed(format_args!("{why}; send less at once")))?;
    Ok(())
}
