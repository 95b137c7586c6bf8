//! Bodies and responses that broke off or were too slow, and the denials for them.

use std::error::Error as _;
use std::time::Duration;

use addons::contract::{Code, Denial, Host, names};
use thiserror::Error;

use crate::upstream;

/// Why a body broke off before its end.
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the body could not be read to its end: {0}")]
    Peer(#[from] hyper::Error),
    #[error("denied: {0}")]
    Denied(Denial),
}

/// Returns the denial for a request whose body broke off or was denied.
pub fn request_broke_off(error: &BodyError) -> Denial {
    match error {
        BodyError::Denied(denial) => denial.clone(),
        BodyError::Peer(_) => Denial::malformed("the body broke off").by(names::PROXY),
    }
}

/// Returns the denial for a request whose body is not complete within `limits.inspect_timeout`.
pub fn request_timed_out(limit: Duration) -> Denial {
    let seconds = limit.as_secs();
    let sentence = format!("The request body was not complete within {seconds} seconds");
    Denial::new(Code::BodyTimeout, sentence).rule("limits.inspect_timeout")
}

/// Returns the denial for a request without a response. If the request's body broke off or was
/// denied, this is the denial of [`request_broke_off`]. In all other cases, the denial blames the
/// upstream.
pub fn upstream_broke_off(host: &Host, error: &hyper::Error) -> Denial {
    match error.source().and_then(|cause| cause.downcast_ref()) {
        Some(body_error) => request_broke_off(body_error),
        None => upstream::broke_off(host, error),
    }
}
