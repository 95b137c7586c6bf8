//! The denials of a lease that its callers may report as the results of calls.

use std::collections::VecDeque;

use addons::contract::RpcError;
use addons::json::{Members, Node, canonical, sha256_hex};
use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::reply::{BLOCK_CODE, CODE_KEY};

/// The most denials that are remembered.
const MAX: usize = 256;
/// The codes of the gateway's own errors. No server's error passes with one.
const OWN_CODES: std::ops::RangeInclusive<i64> = -32953..=-32950;

/// Digests of a lease's latest blocks and of the errors of its denied calls. A gateway passes them on
/// to `after` as results. Any server can write a result that looks like a denial, so only one with a
/// text of ours is ours.
#[derive(Default)]
pub struct OwnDenials(Mutex<VecDeque<String>>);

impl OwnDenials {
    /// Remembers the reason of a block.
    pub fn add(&self, reason: &str) {
        self.add_digest(sha256_hex(reason));
    }

    /// Remembers an error, if it is one of the gateway.
    pub fn add_error(&self, error: &RpcError) {
        if let Some(digest) = digest(error) {
            self.add_digest(digest);
        }
    }

    fn add_digest(&self, digest: String) {
        let mut latest = self.0.lock();
        if latest.contains(&digest) {
            return;
        }
        if latest.len() >= MAX {
            latest.pop_front();
        }
        latest.push_back(digest);
    }

    /// Whether an error is a denial that the gateway sent.
    pub fn has_error(&self, error: &RpcError) -> bool {
        digest(error).is_some_and(|digest| self.0.lock().contains(&digest))
    }

    /// Whether a result is a block as Docker's gateway passes it on: with the members of a result
    /// alone.
    pub fn has_result(&self, result: &RawValue) -> bool {
        let reason = reason(result);
        reason.is_some_and(|reason| self.0.lock().contains(&sha256_hex(&reason)))
    }
}

fn digest(error: &RpcError) -> Option<String> {
    if !OWN_CODES.contains(&error.code) {
        return None;
    }
    let data = match &error.data {
        Some(data) => canonical(&Node::parse(data.get()).ok()?),
        None => String::new(),
    };
    Some(sha256_hex(&format!(
        "{}\n{}\n{data}",
        error.code, error.message
    )))
}

/// The text of a result that has the members of a block and no others.
fn reason(result: &RawValue) -> Option<String> {
    let result = Members::read(result).ok()?;
    let code = BLOCK_CODE.to_string();
    let meta = result.members("_meta").ok()??;
    let mut content = result.elements("content").into_iter();
    let (only, None) = (content.next()?, content.next()) else {
        return None;
    };
    let only = Members::parse(only).ok()?;
    let is_block = result
        .iter()
        .all(|(key, _)| ["content", "isError", "_meta"].contains(&key))
        && result.get("isError") == Some("true")
        && meta.get(CODE_KEY) == Some(&code)
        && meta.iter().count() == 1
        && only.iter().all(|(key, _)| key == "type" || key == "text")
        && only.text("type").as_deref() == Some("text");
    let text = only.text("text").filter(|_| is_block)?;
    Some(text.into_owned())
}
