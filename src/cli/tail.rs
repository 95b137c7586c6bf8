//! `tail`: prints flows as they end.

use std::io::{self, IsTerminal, Write};

use addons::contract::{Code, ContainerId};
use clap::Args;
use serde_json::Value;

use super::exit::{Failure, code, print, printable};
use super::{Target, parse_id};
use crate::mcp::StreamEvent;
use crate::telemetry::LOST;

/// The flows to show, and the server to query.
#[derive(Args, Debug)]
pub struct Tail {
    /// Show only flows of this container
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    container: Option<ContainerId>,
    /// Show only denied flows
    #[arg(long)]
    denied: bool,
    #[command(flatten)]
    target: Target,
}

impl Tail {
    /// Prints flows until the server closes the stream, which is a failure.
    pub(super) async fn run(self) -> Result<(), Failure> {
        let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut events = self.target.client().flows().await?;
        while let Some(event) = events.next().await {
            self.show(&event, colour)?;
        }
        Err(Failure::new(
            code::UNAVAILABLE,
            "the server closed the stream",
        ))
    }

    fn show(&self, event: &StreamEvent, colour: bool) -> Result<(), Failure> {
        if event.kind == "missed" {
            // Written to standard error, so that standard output has only the records of the
            // stream. A write error is ignored, so that flows are still printed.
            let missed = printable(&String::from_utf8_lossy(&event.data));
            let _ = writeln!(io::stderr(), "({missed} flows were missed)");
            return Ok(());
        }
        let Ok(flow) = serde_json::from_slice::<Value>(&event.data) else {
            return Ok(());
        };
        match self.wants(&flow) {
            true => print(line(&flow, colour)),
            false => Ok(()),
        }
    }

    fn wants(&self, flow: &Value) -> bool {
        let is = |field: &str, value: &str| flow.get(field).and_then(Value::as_str) == Some(value);
        let container = self.container.as_ref();
        container.is_none_or(|id| is("container_id", id.as_str()))
            && (!self.denied || is("outcome", "denied"))
    }
}

/// Formats a flow as one line: time (UTC), container or client address, request, status, outcome,
/// reasons and duration. A record of lost audit lines belongs to no flow: its line has the number
/// of lost lines and the period.
fn line(flow: &Value, colour: bool) -> String {
    let field = |name: &str| match flow.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => printable(text),
        Some(other) => other.to_string(),
    };
    let ts = field("ts");
    // The time of day of an RFC 3339 timestamp.
    let time = ts.get(11..19).unwrap_or(&ts);
    if field("kind") == LOST {
        let [count, since, until] = ["count", "since", "until"].map(field);
        let line = format!("{time} lost {count} audit lines from {since} to {until}");
        return shaded(line, "33", colour);
    }
    let who = match field("container_id") {
        id if id.is_empty() => field("client"),
        id => id,
    };
    let outcome = field("outcome");
    let kind = field("kind");
    let status = match kind.as_str() {
        "dns" => response_code(field("status")),
        _ => field("status"),
    };
    let mut line = format!(
        "{time} {who} {kind} {} {}:{}{} {status} {outcome}",
        field("method"),
        field("host"),
        field("port"),
        field("path"),
    );
    for (name, before) in [
        ("server", "server "),
        ("tool", "tool "),
        ("code", ""),
        ("addon", "by "),
        ("rule", "rule "),
        ("decision", "decision "),
        ("reason", "because "),
    ] {
        let text = field(name);
        if !text.is_empty() {
            line.push_str(&format!(" {before}{text}"));
        }
    }
    if field("code") == Code::ClientRejectedCertificate.as_str() {
        line.push_str(" (the client does not trust the CA: see docs/certificates.md)");
    }
    let duration = field("duration_ms");
    if !duration.is_empty() {
        line.push_str(&format!(" {duration}ms"));
    }
    let shade = match outcome.as_str() {
        "denied" => "31",
        "failed" => "33",
        "aborted" => "2",
        _ => "",
    };
    shaded(line, shade, colour)
}

/// The name of a DNS response code that the proxy sends, such as `NXDOMAIN` for 3; the number of any
/// other code.
fn response_code(number: String) -> String {
    let name = match number.as_str() {
        "0" => "NOERROR",
        "1" => "FORMERR",
        "2" => "SERVFAIL",
        "3" => "NXDOMAIN",
        "4" => "NOTIMP",
        "5" => "REFUSED",
        _ => return number,
    };
    name.to_owned()
}

fn shaded(line: String, shade: &str, colour: bool) -> String {
    match colour && !shade.is_empty() {
        true => format!("\x1b[{shade}m{line}\x1b[0m"),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::each_row;

    use super::*;

    #[test]
    fn control_characters_in_a_path_are_escaped_so_that_a_flow_is_one_line() {
        let flow = json!({
            "ts": "2030-01-01T12:34:56.789Z", "container_id": "c1", "kind": "http",
            "method": "GET", "host": "evil.example", "port": 443, "path": "/a\n\u{1b}[2J",
            "status": 403, "outcome": "denied", "code": "domain_not_allowed", "addon": "policy",
            "rule": null, "duration_ms": 3,
        });
        let plain = "12:34:56 c1 http GET evil.example:443/a\\u{a}\\u{1b}[2J 403 denied \
                     domain_not_allowed by policy 3ms";
        assert_eq!(line(&flow, false), plain);
        assert_eq!(line(&flow, true), format!("\x1b[31m{plain}\x1b[0m"));
    }

    #[test]
    fn a_tool_call_is_shown_with_its_server_and_decision() {
        let flow = json!({
            "ts": "2030-01-01T12:34:56.789Z", "container_id": "c1", "kind": "mcp",
            "method": "tools/call", "host": "unified-proxy", "port": 8090, "status": 403,
            "outcome": "denied", "code": "policy_denied_continue", "addon": "mcp", "rule": "authz",
            "server": "kb", "tool": "fetch", "decision": "deny_continue", "reason": "not\ntoday",
        });
        let expected = "12:34:56 c1 mcp tools/call unified-proxy:8090 403 denied server kb tool \
                        fetch policy_denied_continue by mcp rule authz decision deny_continue \
                        because not\\u{a}today";
        assert_eq!(line(&flow, false), expected);
    }

    #[test]
    fn the_response_code_of_a_dns_question_is_shown_by_its_name_and_an_http_status_as_a_number() {
        each_row(
            [
                ("dns", 0, "NOERROR"),
                ("dns", 1, "FORMERR"),
                ("dns", 2, "SERVFAIL"),
                ("dns", 3, "NXDOMAIN"),
                ("dns", 4, "NOTIMP"),
                ("dns", 5, "REFUSED"),
                ("dns", 16, "16"),
                ("http", 3, "3"),
                ("http", 200, "200"),
            ],
            |(kind, status, shown)| {
                let flow = json!({
                    "ts": "2030-01-01T12:34:56.789Z", "container_id": "c1", "kind": kind,
                    "method": "A", "host": "a.example.com", "port": 53, "status": status,
                    "outcome": "ok",
                });
                let expected = format!("12:34:56 c1 {kind} A a.example.com:53 {shown} ok");
                assert_eq!(line(&flow, false), expected);
            },
        );
    }

    #[test]
    fn a_rejected_certificate_is_shown_with_the_page_that_explains_it() {
        let flow = json!({
            "ts": "2030-01-01T12:34:56.789Z", "container_id": "c1", "kind": "tunnel",
            "method": "CONNECT", "host": "api.example.com", "port": 443, "outcome": "denied",
            "code": "client_rejected_certificate", "addon": "proxy", "rule": "unknown_ca",
        });
        let line = line(&flow, false);
        assert!(
            line.contains(
                "rule unknown_ca (the client does not trust the CA: see docs/certificates.md)"
            ),
            "{line}"
        );
    }

    #[test]
    fn a_record_of_lost_audit_lines_is_shown_with_its_count_and_period() {
        let record = json!({
            "ts": "2030-01-01T12:34:56.789Z", "kind": "lost", "count": 18,
            "since": "2030-01-01T12:34:00.000Z", "until": "2030-01-01T12:34:07.000Z",
        });
        let plain = "12:34:56 lost 18 audit lines from 2030-01-01T12:34:00.000Z to \
                     2030-01-01T12:34:07.000Z";
        assert_eq!(line(&record, false), plain);
        assert_eq!(line(&record, true), format!("\x1b[33m{plain}\x1b[0m"));
    }
}
