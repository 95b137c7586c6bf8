//! Git LFS: the batch call, whose answer holds the URLs of large files and the tokens for these
//! URLs.

mod answer;
mod batch;
mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use super::has_encoding;
use super::size::Limit;
use crate::contract::{
    Buffered, Code, Container, Denial, Flow, Host, Request, Response, Verdict, names,
};
use crate::forges::{ForgeBodyJudge, with_message};
pub use tokens::CREDENTIAL;
pub(super) use tokens::redeem;

/// Whether a container may reach a host and port.
pub type Reachable = dyn Fn(&Container, &Host, u16) -> bool + Send + Sync;

/// Marks the flow of a batch call.
struct BatchCall;

/// Judges the headers of a batch call, and its body once it is complete. Denies uploads if
/// `upload_limit` is `None`. The response must be passed to [`judge_answer`].
pub(super) fn judge_call(
    flow: &mut Flow,
    request: &mut Request,
    upload_limit: Option<Limit>,
) -> Verdict {
    refuse_encoding(&request.headers)?;
    // Asks for a response that is not compressed, since `judge_answer` denies a compressed one.
    let identity = HeaderValue::from_static("identity");
    request.headers.insert(ACCEPT_ENCODING, identity);
    flow.put_slot(BatchCall);
    let rewrite = move |body: &Buffered| batch::rewrite_body(body, upload_limit.as_ref());
    let judge = move |body: Buffered| async move { body.inspect(rewrite).await };
    let addon = names::GIT;
    request.judge_body(usize::MAX, ForgeBodyJudge { addon, judge });
    Ok(())
}

/// Rewrites the answer to a batch call. An object whose URL leads to a host and port that the
/// container may not reach gets an error instead of its actions. Placeholders replace the tokens in
/// the header fields of the other actions. Denies a compressed body. Responses of other flows, and
/// responses with a status other than 200, pass unchanged.
pub(super) fn judge_answer(
    flow: &Flow,
    response: &mut Response,
    reachable: &Arc<Reachable>,
) -> Verdict {
    if flow.find_slot::<BatchCall>().is_none() || response.status != StatusCode::OK {
        return Ok(());
    }
    refuse_encoding(&response.headers).map_err(with_message)?;
    let (container, reachable) = (Arc::clone(flow.container()?), Arc::clone(reachable));
    let host = flow.host().clone();
    let rewrite = move |body: &Buffered| answer::rewrite_body(body, &host, &container, &*reachable);
    let judge = move |body: Buffered| async move { body.inspect(rewrite).await };
    let addon = names::GIT;
    response.judge_body(usize::MAX, ForgeBodyJudge { addon, judge });
    Ok(())
}

fn refuse_encoding(headers: &HeaderMap) -> Verdict {
    if has_encoding(headers) {
        let sentence = "Unsupported encoding: an LFS batch must not be compressed";
        return Err(Denial::new(Code::UnsupportedEncoding, sentence).rule("LFS batch"));
    }
    Ok(())
}

/// Serializes the body that replaces `original`. Reserves the original's length as an estimate of
/// the new length: a call only loses members, and a placeholder in an answer is about as long as
/// the token that it replaces.
fn serialize(value: &impl Serialize, original: &Buffered) -> Result<Bytes, Denial> {
    original.reserve(original.bytes().len())?;
    let written = serde_json::to_vec(value).map_err(|_| Denial::internal())?;
    Ok(written.into_boxed_slice().into())
}

#[cfg(test)]
mod tests;
