//! `explain`: prints the verdict of each addon on a request, in a dry run.

use std::convert::Infallible;

use clap::Args;
use serde_json::{Map, Value};

use super::Output;
use super::exit::{Failure, code, printable};
use super::mcp::parse_arguments;
use crate::admin::{ExplainRequest, Explanation, StepVerdict};

/// The METHOD argument of a tool call.
const TOOL_CALL: &str = "tools/call";

const STANDARD_METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// The request to explain.
#[derive(Args, Debug)]
pub struct Explain {
    /// The container's id
    container: String,
    /// The request's method; CONNECT for a tunnel, tools/call for a tool call
    #[arg(value_parser = parse_method)]
    method: String,
    /// The request's URL; wss:// or ws:// for a WebSocket, HOST:PORT for CONNECT; the server of a
    /// tool call
    #[arg(value_name = "URL|SERVER")]
    url: String,
    /// The server's own name for the tool
    #[arg(required_if_eq("method", TOOL_CALL))]
    tool: Option<String>,
    /// The arguments of the tool call: a JSON object [default: {}]
    #[arg(value_name = "JSON", value_parser = parse_arguments)]
    arguments: Option<Map<String, Value>>,
    #[command(flatten)]
    output: Output,
}

/// Accepts the standard methods in lower case too, such as `get`. Methods are case-sensitive, but
/// no server has a method `get`.
fn parse_method(text: &str) -> Result<String, Infallible> {
    let upper = text.to_ascii_uppercase();
    let is_standard = STANDARD_METHODS.contains(&upper.as_str());
    Ok(if is_standard { upper } else { text.to_owned() })
}

impl Explain {
    pub(super) async fn run(self) -> Result<(), Failure> {
        if self.tool.is_some() && self.method != TOOL_CALL {
            let message = "only the method tools/call takes a tool and its arguments";
            return Err(Failure::usage(message));
        }
        let (url, server) = match &self.tool {
            Some(_) => (String::new(), Some(self.url)),
            None => (self.url, None),
        };
        let question = ExplainRequest {
            container: self.container,
            method: self.method,
            url,
            server,
            tool: self.tool,
            arguments: self.arguments,
        };
        let client = self.output.target.client();
        let explanation = client.explain(&question).await?;
        self.output
            .print(&explanation, |explanation| lines(&question, explanation))?;
        match explanation.allowed {
            true => Ok(()),
            false => Err(Failure::silent(code::DENIED)),
        }
    }
}

/// Formats the verdict, then each addon's verdict with its notes and, if it denies, the reason.
pub(super) fn lines(question: &ExplainRequest, explanation: &Explanation) -> String {
    let verdict = match explanation.allowed {
        true => "allowed",
        false => "denied",
    };
    let ExplainRequest {
        container, method, ..
    } = question;
    let what = match (&question.server, &question.tool) {
        (Some(server), Some(tool)) => format!("{server} {tool}"),
        _ => question.url.clone(),
    };
    let mut lines = vec![printable(&format!(
        "{method} {what} by {container}: {verdict}"
    ))];
    for step in &explanation.steps {
        let verdict = match step.verdict {
            StepVerdict::Passes => "passes",
            StepVerdict::Denies => "denies",
            StepVerdict::NotReached => "not reached",
        };
        lines.push(printable(&format!("  {:<16}{verdict}", step.addon)));
        let denial = step.code.iter().map(|code| match &step.sentence {
            Some(sentence) => format!("{code}: {sentence}"),
            None => code.clone(),
        });
        let rule = step.rule.iter().map(|rule| format!("decided by {rule}"));
        let edit = step.edit.iter().map(|edit| format!("to change it: {edit}"));
        let notes = step.notes.iter().cloned();
        for text in notes.chain(denial).chain(rule).chain(edit) {
            lines.push(printable(&format!("{:18}{text}", "")));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::admin::ExplainStep;

    #[test]
    fn a_standard_method_is_accepted_in_lower_case_and_others_stay_as_they_are() {
        each_row(
            [
                ("get", "GET"),
                ("Post", "POST"),
                ("connect", "CONNECT"),
                ("patch", "PATCH"),
                ("GET", "GET"),
                ("tools/call", "tools/call"),
                ("propfind", "propfind"),
                ("getx", "getx"),
            ],
            |(text, method)| {
                assert_eq!(parse_method(text).as_deref(), Ok(method));
            },
        );
    }

    #[test]
    fn the_explanation_lists_each_addons_verdict_and_the_reason_of_a_denial() {
        let step = |addon: &str, verdict| ExplainStep {
            addon: addon.into(),
            verdict,
            notes: Vec::new(),
            code: None,
            sentence: None,
            rule: None,
            edit: None,
        };
        let question = ExplainRequest {
            container: "c1".into(),
            method: "GET".into(),
            url: "https://x.example/".into(),
            ..ExplainRequest::default()
        };
        let explanation = Explanation {
            allowed: false,
            steps: vec![
                step("identity", StepVerdict::Passes),
                ExplainStep {
                    notes: vec!["no entry of allowlist.yaml matches".into()],
                    code: Some("domain_not_allowed".into()),
                    sentence: Some("Domain not allowed: x.example".into()),
                    rule: Some("allowlist.yaml:3".into()),
                    edit: Some("add x.example to domains".into()),
                    ..step("policy", StepVerdict::Denies)
                },
                step("git", StepVerdict::NotReached),
            ],
        };
        let expected = "\
GET https://x.example/ by c1: denied
  identity        passes
  policy          denies
                  no entry of allowlist.yaml matches
                  domain_not_allowed: Domain not allowed: x.example
                  decided by allowlist.yaml:3
                  to change it: add x.example to domains
  git             not reached";
        assert_eq!(lines(&question, &explanation), expected);
    }
}
