//! Explains a question: why it is asked, and what each answer would do.

use time::OffsetDateTime;

use super::show::{LABEL, asked};
use crate::admin::{Approval, ExplainRequest};
use crate::approvals::bounds::DEFAULT_GRANT;
use crate::cli::client::Client;
use crate::cli::exit::printable;
use crate::cli::explain;

/// What each answer to a question would do and, for a host or a request, the verdict of each addon
/// now.
pub(super) async fn explained(client: &Client, question: &Approval, now: OffsetDateTime) -> String {
    let mut text = answers(question, now);
    if let Some(request) = request(question) {
        let verdict = match client.explain(&request).await {
            Ok(explanation) => explain::lines(&request, &explanation),
            Err(failure) => printable(failure.message()),
        };
        text.push_str(&format!("\n\n{verdict}"));
    }
    text
}

fn answers(question: &Approval, now: OffsetDateTime) -> String {
    let Approval {
        container_id,
        level,
        subject,
        ..
    } = question;
    let (once, leased) = covered(question);
    let rule = question.rule.as_deref().unwrap_or("the server");
    let reason = question.reason.as_deref().unwrap_or("no reason given");
    let mut rows = vec![
        ("asks", format!("{rule}: {reason}")),
        ("asked", asked(question, now)),
        (
            "level",
            format!("{container_id} is at {level}: an approval holds up to this level"),
        ),
        ("y", format!("permits {once}")),
    ];
    if question.scopes.iter().any(|scope| scope == "lease") {
        let until = format!("until the lease of {container_id} ends");
        rows.push(("l", format!("permits {leased}, {until}")));
    }
    rows.push((
        "n",
        format!(
            "denies {subject}: the agent gets your words, and so do equal questions of \
             {container_id} for as long as this one had to be decided"
        ),
    ));
    let rows = rows.into_iter();
    let lines = rows.map(|(name, text)| format!("{name:<LABEL$}{}", printable(&text)));
    lines.collect::<Vec<_>>().join("\n")
}

/// What an approval covers, and what one until the end of the lease covers.
fn covered(question: &Approval) -> (String, String) {
    let Approval {
        kind,
        subject,
        container_id,
        ..
    } = question;
    let minutes = DEFAULT_GRANT.as_secs().div_euclid(60);
    let for_a_time = |what: String| (format!("{what}, for {minutes} minutes"), what);
    match kind.as_str() {
        "tool" => (
            format!("one call of {subject} by {container_id}, with exactly these arguments"),
            format!("every call of {subject} by {container_id}, with any arguments"),
        ),
        "host" => for_a_time(format!("{container_id} to reach exactly {subject}")),
        // A rule without methods and paths asks about a host and port.
        "request" if !subject.contains(' ') => {
            for_a_time(format!("{container_id} to send any request to {subject}"))
        }
        "request" => for_a_time(format!(
            "{container_id} to send exactly {subject}, with any query and body"
        )),
        _ => (subject.clone(), subject.clone()),
    }
}

/// The request that a question is about; `None` for other kinds.
fn request(question: &Approval) -> Option<ExplainRequest> {
    let (method, url) = match question.kind.as_str() {
        "host" => ("CONNECT", question.subject.clone()),
        "request" => match question.subject.split_once(' ') {
            None => ("CONNECT", question.subject.clone()),
            Some((method, rest)) => {
                let (authority, path) = rest.split_once(' ')?;
                let scheme = match authority.rsplit_once(':')? {
                    (_, "80") => "http",
                    _ => "https",
                };
                (method, format!("{scheme}://{authority}{path}"))
            }
        },
        _ => return None,
    };
    Some(ExplainRequest {
        container: question.container_id.clone(),
        method: method.to_owned(),
        url,
        ..ExplainRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn question(kind: &str, subject: &str, scopes: &[&str]) -> Approval {
        Approval {
            id: "0123456789abcdef0123456789abcdef".to_owned(),
            kind: kind.to_owned(),
            state: "pending".to_owned(),
            container_id: "web".to_owned(),
            lease: String::new(),
            subject: subject.to_owned(),
            arguments: None,
            rule: Some("freeze".to_owned()),
            reason: Some("no deletes\u{1b} on Fridays".to_owned()),
            level: "Public".to_owned(),
            created_at: "2030-01-01T00:00:00Z".to_owned(),
            expires_at: "2030-01-01T01:00:00Z".to_owned(),
            attempts: 3,
            waiting: 1,
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            decided_by: None,
            decided_at: None,
            comment: None,
        }
    }

    #[test]
    fn each_answer_says_what_it_would_do_for_this_kind_of_question() {
        let now = OffsetDateTime::from_unix_timestamp(1_893_456_300).unwrap();
        let either = &["for", "lease"][..];
        each_row(
            [
                (
                    "tool",
                    "kb/pay",
                    &["once", "lease"][..],
                    "one call of kb/pay by web",
                ),
                (
                    "tool",
                    "kb/pay",
                    &["once", "lease"],
                    "every call of kb/pay by web",
                ),
                (
                    "host",
                    "a.example.com:443",
                    either,
                    "web to reach exactly a.example.com:443, for 10 minutes",
                ),
                (
                    "host",
                    "a.example.com:443",
                    either,
                    "until the lease of web ends",
                ),
                (
                    "request",
                    "PUT a.example.com:443 /b",
                    either,
                    "exactly PUT a.example.com:443 /b, with any query and body",
                ),
                (
                    "request",
                    "a.example.com:443",
                    either,
                    "any request to a.example.com:443, for 10 minutes",
                ),
                ("definition", "kb/pay", &["once"], "permits kb/pay"),
            ],
            |(kind, subject, scopes, part)| {
                let question = question(kind, subject, scopes);
                let text = answers(&question, now);
                let both = [
                    "freeze: no deletes\\u{1b} on Fridays",
                    "3 times, first 5m ago; 1 caller waits",
                    "web is at Public",
                    part,
                ];
                for part in both {
                    assert!(text.contains(part), "{part}: {text}");
                }
                let offers_lease = text.contains("\nl ");
                assert_eq!(offers_lease, scopes.contains(&"lease"), "{text}");
            },
        );
    }

    #[test]
    fn a_question_about_a_host_or_a_request_is_one_that_the_server_can_explain() {
        each_row(
            [
                (
                    "host",
                    "a.example.com:443",
                    Some(("CONNECT", "a.example.com:443")),
                ),
                (
                    "request",
                    "a.example.com:8443",
                    Some(("CONNECT", "a.example.com:8443")),
                ),
                (
                    "request",
                    "PUT a.example.com:443 /b",
                    Some(("PUT", "https://a.example.com:443/b")),
                ),
                (
                    "request",
                    "PUT a.example.com:80 /b",
                    Some(("PUT", "http://a.example.com:80/b")),
                ),
                ("request", "PUT what", None),
                ("tool", "kb/pay", None),
            ],
            |(kind, subject, expected)| {
                let found = request(&question(kind, subject, &[]));
                let found = found.as_ref().map(|found| (&*found.method, &*found.url));
                assert_eq!(found, expected);
            },
        );
    }
}
