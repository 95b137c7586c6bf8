//! Collects what people decided during a run, from the lines of their acts in the audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use addons::contract::Code;
use addons::policy::{HOST_RULE, parse_entry};
use serde_json::Value;

use super::MAX_LINES;
use super::remedy::{named, text};
use crate::cli::exit::printable;

/// The beginning of the method in the line of an act.
const ACT: &str = "operator/";

/// Whether a line of the audit log is the act of a person. A command can choose the method of an MCP
/// message, but not the rule that decides on it.
pub fn is_act(line: &Value) -> bool {
    text(line, "method").starts_with(ACT) && text(line, "rule").starts_with("operator: ")
}

/// What people decided.
#[derive(Debug, Default)]
pub struct Decisions {
    /// The latest decision about each subject.
    latest: BTreeMap<String, Decision>,
    /// The questions that rules asked. For such a question `--allow` is no answer, even if its
    /// subject is a host and a port.
    of_rules: BTreeSet<String>,
}

#[derive(Debug)]
struct Decision {
    /// What was decided, such as `approved for 600s`.
    text: String,
    /// The host to allow, if this is the approval of a host.
    host: Option<String>,
}

impl Decisions {
    /// Notes the question of a denied flow, if a rule asked it.
    pub fn asked(&mut self, line: &Value) {
        let question = text(line, "approval");
        let is_pending = text(line, "code") == Code::ApprovalPending.as_str();
        let is_of_rule = is_pending && text(line, "rule") != HOST_RULE;
        if is_of_rule && !question.is_empty() && self.of_rules.len() < MAX_LINES {
            self.of_rules.insert(question.to_owned());
        }
    }

    /// Adds the line of a person's act. Returns the host and port that are no longer granted, if the
    /// act revokes a grant of a host, or of a rule about whole hosts.
    pub fn add(&mut self, line: &Value) -> Option<(String, u64)> {
        let act = text(line, "method").strip_prefix(ACT)?;
        let subject = text(line, "path");
        let is_of_rule = self.of_rules.contains(text(line, "approval"));
        let place = host_of(line, subject);
        let host = place.clone().filter(|_| !is_of_rule);
        let shown = match (&host, text(line, "server")) {
            (Some((host, port)), _) => named(host, *port),
            (None, "") => subject.to_owned(),
            (None, server) => format!("{server}/{subject}"),
        };
        let said = text(line, "reason");
        let decided = match act {
            "approve" | "grant" => match said.split(": ").next().unwrap_or_default() {
                "lease" => "approved for the run".to_owned(),
                scope => format!("approved {scope}"),
            },
            "deny" if said.is_empty() => "denied".to_owned(),
            "deny" => format!("denied: {said}"),
            "forget" | "revoke" => {
                self.latest.remove(&shown);
                return place.filter(|_| act == "revoke");
            }
            _ => return None,
        };
        let is_allowed = act != "deny";
        if self.latest.len() < MAX_LINES || self.latest.contains_key(&shown) {
            let host = host.filter(|_| is_allowed).map(|_| shown.clone());
            let text = decided;
            self.latest.insert(shown, Decision { text, host });
        }
        None
    }

    /// Whether the latest decision about a host is known, so that the denials before it are not
    /// listed.
    pub fn has(&self, host: &str) -> bool {
        self.latest.contains_key(host)
    }

    /// The list of decisions, with the flags that would have made them unnecessary; empty if nobody
    /// decided. `learns`: the hosts are kept by `--learn`.
    pub fn text(&self, learns: bool) -> String {
        if self.latest.is_empty() {
            return String::new();
        }
        let width = self.latest.keys().map(String::len).max();
        let width = width.unwrap_or(0).min(60);
        let mut text = "unified-proxy: decided by a person\n".to_owned();
        for (subject, Decision { text: what, host }) in &self.latest {
            let flag = host.as_ref().map(|host| format!("   --allow {host}"));
            let line = format!("{what}{}", flag.unwrap_or_default());
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "  {:width$}  {}",
                printable(subject),
                printable(&line)
            );
        }
        if !learns && self.latest.values().any(|decision| decision.host.is_some()) {
            text.push_str(
                "unified-proxy: to allow these hosts without a question, add the options above, \
                 or write an allowlist with --learn FILE\n",
            );
        }
        text
    }
}

/// The host and port, if the subject is one: that of a question about a host, or of a rule about
/// whole hosts. Any other subject has spaces, or is a tool.
fn host_of(line: &Value, subject: &str) -> Option<(String, u64)> {
    if !text(line, "server").is_empty() {
        return None;
    }
    let (host, port) = subject.rsplit_once(':')?;
    parse_entry(host).ok()?;
    Some((host.to_owned(), port.parse().ok()?))
}
