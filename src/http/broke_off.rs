//! Bodies and responses that broke off, and the denials for them.

use std::error::Error as _;

use addons::contract::{Code, Denial, Host, Stage, names};
use thiserror::Error;

/// Why a body broke off before its end.
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the other side broke off: {0}")]
    Peer(#[from] hyper::Error),
    #[error("denied: {0}")]
    Denied(Denial),
}

/// The denial for a request whose body broke off.
pub fn request_broke_off(error: &BodyError) -> Denial {
    match error {
        BodyError::Denied(denial) => denial.clone(),
        BodyError::Peer(_) => Denial::malformed("the body broke off").by(names::PROXY),
    }
}

/// The denial for a request without a response: that of its body if the body broke off or was
/// denied, otherwise one that blames the upstream.
pub fn upstream_broke_off(host: &Host, error: &hyper::Error) -> Denial {
    let ours = error.source().and_then(|cause| cause.downcast_ref());
    if let Some(body) = ours {
        return request_broke_off(body);
    }
    not_answered(
        host,
        match error.is_parse() {
            true => "sent a malformed HTTP response",
            false => "closed the connection",
        },
    )
}

/// The denial for an upstream that sent no valid or no complete response; `why` completes the
/// sentence "HOST …".
pub fn not_answered(host: &Host, why: &str) -> Denial {
    Denial::new(Code::UpstreamUnreachable, format!("{host} {why}")).at(Stage::Response)
}
