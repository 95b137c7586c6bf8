//! Git LFS: the batch call, whose answer holds the addresses of large files and the tokens for
//! them.

mod answer;
mod batch;
mod tokens;

use std::sync::Arc;

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::size;
use crate::contract::{Code, Container, Denial, Flow, Host, Request, Response, Verdict};
use answer::BatchResponseJudge;
use batch::BatchJudge;
pub(super) use batch::BatchRules;
pub(super) use tokens::redeem;

/// Whether a container may reach a host and port.
pub type Reachable = dyn Fn(&Container, &Host, u16) -> bool + Send + Sync;

/// Marks the flow of a batch call.
struct BatchCall;

/// Judges the headers of a batch call, and its body once it is complete. The response must be
/// passed to [`answer`].
pub(super) fn call(flow: &mut Flow, request: &mut Request, rules: BatchRules) -> Verdict {
    readable(&request.headers)?;
    // The judge of the response cannot read a compressed body.
    let identity = HeaderValue::from_static("identity");
    request.headers.insert(ACCEPT_ENCODING, identity);
    flow.put_slot(BatchCall);
    request.judge_body(usize::MAX, BatchJudge(rules));
    Ok(())
}

/// Rewrites the body of a batch call's response, so that it leads only to allowed hosts and holds
/// no token. Denies a compressed one. Responses of other flows, and those with a status other than
/// 200, pass unchanged.
pub(super) fn answer(flow: &Flow, response: &mut Response, reachable: &Arc<Reachable>) -> Verdict {
    if flow.find_slot::<BatchCall>().is_none() || response.status != StatusCode::OK {
        return Ok(());
    }
    readable(&response.headers).map_err(as_its_client_shows)?;
    let (container, reachable) = (Arc::clone(flow.container()?), Arc::clone(reachable));
    let judge = BatchResponseJudge {
        container,
        reachable,
    };
    response.judge_body(usize::MAX, judge);
    Ok(())
}

/// Adds the sentence as `message`, which git-lfs shows, unless the denial has a `message`. Without
/// one, git-lfs reports a 403 as a wrong password.
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

fn too_large(size: u64, rules: &BatchRules) -> Denial {
    let denial = size::too_large(size, rules.limit).rule(rules.limit_rule.as_str());
    let (size, most) = (size::human(size), size::human(rules.limit));
    let sentence = denial.sentence();
    let message = format!("{sentence}: a file of {size}, where at most {most} may be sent");
    denial.with("message", message)
}

#[cfg(test)]
mod tests;
