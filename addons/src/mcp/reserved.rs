//! Errors that only the proxy may send.

use super::denials::Target;
use crate::contract::{Frame, FrameBody, Verdict};

/// The error codes that are reserved for the proxy.
const RESERVED_CODES: std::ops::RangeInclusive<i64> = -32953..=-32950;
/// The prefixes of error messages that are reserved for the proxy, in lower case.
const RESERVED_MESSAGES: [&str; 3] = [
    "policy_denied",
    "policy_backend_reserved_misuse",
    "policy_evaluator_error",
];

/// Denies a server's error if its code or message is reserved for the proxy.
pub(super) fn refuse_reserved_error(frame: &Frame, target: &Target) -> Verdict {
    let FrameBody::Outcome(Err(error)) = &frame.body else {
        return Ok(());
    };
    let message = error.message.trim().to_ascii_lowercase();
    let is_ours = |prefix: &&str| message.starts_with(*prefix);
    match RESERVED_CODES.contains(&error.code) || RESERVED_MESSAGES.iter().any(is_ours) {
        true => Err(target.misused(error.code)),
        false => Ok(()),
    }
}
