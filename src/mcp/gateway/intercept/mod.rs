//! The interceptor API: other gateways and agents' hooks ask about tool calls and their results.
//!
//! An answer is never mistaken for an allow. The callers read what they can of any body and ignore
//! the status; one takes an empty body as an allow. So [`answer`] is the only place where an answer is
//! written, and whatever goes wrong ends there as a block in the caller's dialect.

mod asked;
mod docker;
mod hooks;
mod own_denials;
mod paths;
mod reply;
mod request;
mod structured;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use addons::contract::{Answer, Code, Denial};
use addons::json::ObjectText;
use futures_util::FutureExt;
use http::{Method, Response, StatusCode};
use serde_json::value::RawValue;

use super::super::error::rpc_error;
use super::super::version::Version;
use super::Gateway;
use super::answer::HttpResponse;
use super::hosts;
use super::lease::LeaseState;
use super::refusal::JSON;
use super::token::while_leased;
use super::visit::{ClientDescription, Visit, own_subject};
use crate::http::{OriginRequest, Reply};

pub use own_denials::OwnDenials;
pub use paths::is_under;

use asked::Asked;
use paths::Endpoint;
use reply::{Dialect, Said};
use request::read;

/// The most bytes of a container's unread body that are drained after a block.
const DRAIN_BYTES: u64 = 16 << 20;
/// The same of an unknown caller: these share few connections, so none is drained for long.
const DRAIN_BYTES_OF_UNKNOWN: u64 = 1 << 20;

/// What is known of a question, however far it came.
struct Known {
    dialect: Dialect,
    /// `before`, `after` or `other`, for the metrics.
    kind: &'static str,
    /// The server and the tool, if the file or a server's list names the tool.
    tool: Option<(Arc<str>, Arc<str>)>,
    /// Whether a flow has recorded the verdict.
    is_recorded: bool,
}

/// Answers a request to a path under `/intercept`: with 200, or with 400 for an invalid body. Also
/// after a panic, and for an unknown caller.
pub async fn answer(gateway: &Gateway, mut request: OriginRequest) -> Response<Reply> {
    let endpoint = Endpoint::of(request.head.uri.path());
    let mut known = Known {
        dialect: endpoint.dialect(),
        kind: endpoint.kind(),
        tool: None,
        is_recorded: false,
    };
    let session = Arc::clone(&request.session);
    let routed = route(gateway, &mut request, endpoint, &mut known);
    let routed = AssertUnwindSafe(while_leased(&session, routed));
    let said = routed.catch_unwind().await;
    let said = said.unwrap_or_else(|_panic| Err(Denial::internal().rule("panic")));
    let action = said.as_ref().map_or("block", Said::action);
    let duration = request.started().elapsed();
    let labels = (known.kind, action);
    gateway.core.intercepted(labels, known.tool, duration);
    let denial = match said {
        Ok(said) => {
            let response = match reply::pass(known.dialect, &said) {
                Some(body) => HttpResponse::json(StatusCode::OK, body),
                None => HttpResponse::empty(StatusCode::OK),
            };
            return response.into_reply(request);
        }
        Err(denial) => denial,
    };
    let reason = rpc_error(&denial).message;
    let drain_bytes = match &request.session.container {
        Some(container) => {
            LeaseState::of(container).own_denials.add(&reason);
            DRAIN_BYTES
        }
        None => DRAIN_BYTES_OF_UNKNOWN,
    };
    let body = reply::block(known.dialect, &reason);
    let is_invalid = denial.code() == Code::MalformedRequest && !known.dialect.is_hook();
    let status = match is_invalid {
        true => StatusCode::BAD_REQUEST,
        false => StatusCode::OK,
    };
    if known.is_recorded {
        return HttpResponse::json(status, body).into_reply(request);
    }
    request.deny(denial.answered_with(Answer {
        status: status.as_u16(),
        content_type: JSON,
        body,
        drain_bytes,
    }))
}

async fn route(
    gateway: &Gateway,
    request: &mut OriginRequest,
    endpoint: Endpoint,
    known: &mut Known,
) -> Result<Said, Denial> {
    request.check()?;
    if request.head.uri.authority().is_some() {
        let sentence = "this listener serves MCP and is not a proxy";
        return Err(Denial::malformed(sentence));
    }
    let settings = &request.snapshot.config.addons.mcp;
    hosts::check(&request.head.headers, &settings.allowed_hosts)?;
    if !endpoint.is_known() || request.head.method != Method::POST {
        let sentence = "Only POST to /intercept/before, /intercept/after and /intercept/claude-code is answered here";
        return Err(Denial::new(Code::MethodNotAllowed, sentence));
    }
    let mut visit = Visit::begin(gateway, request).await?;
    let asked = read(&mut visit, endpoint, known).await?;
    let caller = visit.caller(ClientDescription {
        version: Version::NEWEST_LEGACY,
        capabilities: RawValue::from_string("{}".to_owned())
            .map_err(|_| Denial::internal())?
            .into(),
        info: None,
        session: None,
        log_level: None,
        takes_tasks: false,
    });
    let core = &gateway.core;
    let (ruled, is_response, nested) = match asked {
        Asked::Before { before, is_nested } => {
            let nested = before.tool.clone().filter(|_| is_nested);
            (core.judge_before(caller, before).await, false, nested)
        }
        Asked::After(after) => (core.judge_after(caller, after).await, true, None),
    };
    known.tool = ruled.label;
    known.is_recorded = true;
    visit.request.carries(own_subject("tools/call"));
    let passed = ruled.verdict?;
    let modified = match (passed.modified, nested) {
        (Some(arguments), Some(tool)) => Some(wrapped(tool.name(), &arguments)?),
        (modified, _) => modified,
    };
    let said = Said {
        modified,
        metadata: ruled.metadata,
        is_approved: passed.is_approved,
    };
    // What the dialect cannot say is a block, which is recorded beside the verdict.
    let checked = known.dialect.check(&said, is_response);
    known.is_recorded = checked.is_ok();
    checked.map(|()| said)
}

/// The arguments of a call whose arguments name the tool.
fn wrapped(tool: &str, arguments: &RawValue) -> Result<Box<RawValue>, Denial> {
    let mut wrapped = ObjectText::default();
    wrapped.text("name", tool);
    wrapped.member("arguments", arguments.get());
    RawValue::from_string(wrapped.end()).map_err(|_| Denial::internal())
}
