//! Writes `text/event-stream`.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;

/// A comment, which keeps an idle connection open.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");
/// Interval of comments on an idle stream. Idle timeouts of proxies and load balancers are usually
/// 30 s or longer.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// The reconnection time in `retry` fields, in milliseconds.
const RETRY_MS: u32 = 1000;

/// An event with a message. Raw JSON may contain line breaks: each line becomes a `data` field, and
/// the receiver joins the lines with line feeds.
pub fn message(id: Option<&str>, json: &str) -> Bytes {
    let mut text = String::with_capacity(json.len() + 48);
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    text.push_str("event: message\n");
    let lines = json.split(['\n', '\r']);
    for line in lines.filter(|line| !line.is_empty()) {
        let _ = writeln!(text, "data: {line}");
    }
    text.push('\n');
    text.into()
}

/// An event with empty data, which sends a client an event id and the reconnection time.
pub fn priming(id: &str) -> Bytes {
    format!("id: {id}\nretry: {RETRY_MS}\ndata:\n\n").into()
}

/// The event of the HTTP+SSE transport that names the URL for messages.
pub fn endpoint(path: &str) -> Bytes {
    format!("event: endpoint\ndata: {path}\n\n").into()
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn json_over_several_lines_arrives_as_one_message() {
        each_row(
            [
                ("{\"a\":1}", "data: {\"a\":1}\n"),
                ("{\n  \"a\": 1\n}", "data: {\ndata:   \"a\": 1\ndata: }\n"),
                ("{\r\n\"a\":1\r}", "data: {\ndata: \"a\":1\ndata: }\n"),
                ("{\n\n}", "data: {\ndata: }\n"),
            ],
            |(json, data)| {
                let expected = format!("id: 3-1\nevent: message\n{data}\n");
                assert_eq!(message(Some("3-1"), json), expected.as_bytes());
            },
        );
        assert_eq!(message(None, "{}"), &b"event: message\ndata: {}\n\n"[..]);
    }
}
