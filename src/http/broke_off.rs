//! Why bodies and answers ended before their time, and the denials for it.

use std::error::Error as _;

use addons::contract::{Code, Denial, Host, Stage, names};
use thiserror::Error;

/// Why a body broke off.
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the other side broke off: {0}")]
    Peer(#[from] hyper::Error),
    #[error("denied: {0}")]
    Denied(Denial),
}

/// A request's body ended before its time.
pub fn request_broke_off(error: &BodyError) -> Denial {
    match error {
        BodyError::Denied(denial) => denial.clone(),
        BodyError::Peer(_) => Denial::malformed("the body broke off").by(names::PROXY),
    }
}

/// There is no answer. Whose fault it is: the client's, where its body broke off.
pub fn upstream_broke_off(host: &Host, error: &hyper::Error) -> Denial {
    let ours = error.source().and_then(|cause| cause.downcast_ref());
    if let Some(body) = ours {
        return request_broke_off(body);
    }
    not_answered(
        host,
        match error.is_parse() {
            true => "sent what is not HTTP",
            false => "closed the connection",
        },
    )
}

/// The upstream did something else than answer.
pub fn not_answered(host: &Host, why: &str) -> Denial {
    Denial::new(Code::UpstreamUnreachable, format!("{host} {why}")).at(Stage::Response)
}
