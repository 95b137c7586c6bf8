//! Large files: the batch call, which tells clients where files lie and how to get in.

mod answer;
mod tokens;
mod whole;

use std::sync::Arc;

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;

use super::size;
use crate::contract::{Code, Container, Denial, Flow, Host, Request, Response, Verdict};
pub(super) use tokens::redeem;
use whole::WholeJson;

/// Whether a container may go to a host and port at all.
pub type Reachable = dyn Fn(&Container, &Host, u16) -> bool + Send + Sync;

/// What a batch call is held to.
pub(super) struct BatchRules {
    /// Nothing may be uploaded: the repository is not the container's own.
    pub only_downloads: bool,
    /// What one file may not be larger than.
    pub limit: u64,
    pub limit_rule: String,
    /// The most that may be held of one body.
    pub inspect_bytes: usize,
}

/// A batch call under way.
pub(super) struct Batch {
    inspect_bytes: usize,
}

/// Judges a batch call; its answer must be rewritten by [`answer`].
pub(super) fn call(flow: &mut Flow, request: &mut Request, rules: BatchRules) -> Verdict {
    readable(&request.headers)?;
    // Its answer must be read too.
    let identity = HeaderValue::from_static("identity");
    request.headers.insert(ACCEPT_ENCODING, identity);
    let inspect_bytes = rules.inspect_bytes;
    flow.slots.put(Batch { inspect_bytes });
    request.push_filter(WholeJson::new(inspect_bytes, move |batch| {
        judge(batch, &rules)
    }));
    Ok(())
}

/// Rewrites the answer to a batch call: no way leads out of the allowlist, no token is seen.
pub(super) fn answer(flow: &Flow, response: &mut Response, reachable: &Arc<Reachable>) -> Verdict {
    let Some(batch) = flow.slots.find::<Batch>() else {
        return Ok(());
    };
    if response.status != StatusCode::OK {
        return Ok(());
    }
    readable(&response.headers).map_err(as_its_client_shows)?;
    let (container, reachable) = (Arc::clone(flow.container()?), Arc::clone(reachable));
    response.push_filter(WholeJson::new(batch.inspect_bytes, move |answer| {
        answer::rewrite(answer, &container, &*reachable);
        Ok(())
    }));
    Ok(())
}

/// git-lfs shows what stands under `message`; without it, a 403 is told as a wrong password.
pub(super) fn as_its_client_shows(denial: Denial) -> Denial {
    if denial.detail("message").is_some() {
        return denial;
    }
    let message = denial.sentence().to_owned();
    denial.with("message", message)
}

fn readable(headers: &HeaderMap) -> Verdict {
    let encoded = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().any(encoded) {
        let sentence = "Unsupported encoding: a batch of LFS must be readable";
        return Err(Denial::new(Code::UnsupportedEncoding, sentence).rule("LFS batch"));
    }
    Ok(())
}

fn judge(batch: &Value, rules: &BatchRules) -> Verdict {
    let uploads = match batch.get("operation").and_then(Value::as_str) {
        Some("download") => return Ok(()),
        Some("upload") => batch.get("objects").and_then(Value::as_array),
        _ => return Err(Denial::malformed("an LFS batch is an upload or a download")),
    };
    if rules.only_downloads {
        return Err(Denial::new(Code::RepoNotAuthorized, "Repo not authorized").rule("LFS batch"));
    }
    for object in uploads.into_iter().flatten() {
        let size = object.get("size").and_then(Value::as_u64);
        let size = size.ok_or_else(|| Denial::malformed("an LFS object has no size"))?;
        if size > rules.limit {
            return Err(too_large(size, rules));
        }
    }
    Ok(())
}

fn too_large(size: u64, rules: &BatchRules) -> Denial {
    let denial = size::too_large(size, rules.limit).rule(rules.limit_rule.as_str());
    let (size, most) = (size::human(size), size::human(rules.limit));
    let sentence = denial.sentence();
    let message = format!("{sentence}: a file of {size}, where at most {most} may be sent");
    denial.with("message", message)
}

#[cfg(test)]
mod tests;
