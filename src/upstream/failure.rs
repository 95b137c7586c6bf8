//! Denials for upstreams that sent no valid or no complete response.

use addons::contract::{Code, Denial, Host, Stage};

use super::MAX_HEADER_LINES;

/// The denial for an upstream that sent no valid response. `why` completes the sentence "HOST …".
pub fn not_answered(host: &Host, why: &str) -> Denial {
    Denial::new(Code::UpstreamUnreachable, format!("{host} {why}")).at(Stage::Response)
}

/// The denial for a connection that failed before the response's head was complete.
pub fn broke_off(host: &Host, error: &hyper::Error) -> Denial {
    if error.is_parse_too_large() {
        let why = format!(
            "sent a response head that is too large: over {MAX_HEADER_LINES} header lines, or over 400 KiB"
        );
        return not_answered(host, &why);
    }
    let why = match error.is_parse() {
        true => "sent a malformed HTTP response",
        false => "closed the connection",
    };
    not_answered(host, why)
}

/// The denial for a response that needs a connection that reads long heads. Later connections of
/// the lease to this host read them.
pub fn head_too_long(host: &Host) -> Denial {
    let why = format!(
        "has received the request, and sent a response head of over 100 header lines, or over 400 KiB; later responses may have up to {MAX_HEADER_LINES} lines"
    );
    not_answered(host, &why)
}

/// The denial for a response that did not begin, or was not complete, in time.
pub fn not_answered_in_time(host: &Host) -> Denial {
    let sentence = format!("{host} did not answer in time");
    Denial::new(Code::UpstreamTimeout, sentence).at(Stage::Response)
}
