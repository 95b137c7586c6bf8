//! Collects the hosts that a run requested, for the report at its end and for `--learn`.

mod changed_files;
mod decisions;
mod remedy;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::exit::printable;

pub use changed_files::{Changes, text_of_changes};

use decisions::{Decisions, is_act};
use remedy::{Denied, USUAL_PORTS, text};

/// Limit on the pairs of host and remedy that are counted separately; denials of further pairs are
/// counted together. Also the limit on the files that are listed; further files are counted.
const MAX_LINES: usize = 200;

/// The denials of a run, and the hosts that it requested.
#[derive(Debug, Default)]
pub struct Report {
    /// The variables that the command sees as placeholders, by placeholder.
    masked: BTreeMap<String, String>,
    /// Denials, each with its count.
    denied: BTreeMap<Denied, u64>,
    /// What people decided.
    decisions: Decisions,
    /// The number of denials that are not counted in `denied`, which has at most [`MAX_LINES`]
    /// entries.
    others: u64,
    /// The requested pairs of host and port, up to 10 × [`MAX_LINES`]; flows to further pairs are
    /// ignored. The value says whether at least one flow to the pair was not denied.
    requested: BTreeMap<(String, u64), bool>,
}

impl Report {
    /// An empty report. `masked` are the variables that the command sees as placeholders, by
    /// placeholder.
    pub fn new(masked: BTreeMap<String, String>) -> Self {
        Self {
            masked,
            ..Self::default()
        }
    }

    /// Counts the flow of a line of the audit log, or all flows of a folded line. Ignores a line
    /// without a host.
    pub fn add(&mut self, flow: &Value) {
        if is_act(flow) {
            let revoked = self.decisions.add(flow);
            let reached = revoked.and_then(|pair| self.requested.get_mut(&pair));
            reached.into_iter().for_each(|reached| *reached = false);
            return;
        }
        let text = |name: &str| text(flow, name);
        let host = text("host");
        if host.is_empty() {
            return;
        }
        let count = flow.get("count").and_then(Value::as_u64).unwrap_or(1);
        let is_denied = text("outcome") == "denied";
        // A line that stands for flows to several hosts.
        if host == "*" {
            self.others += if is_denied { count } else { 0 };
            return;
        }
        let port = match text("kind") {
            // The name of a DNS question, for a connection to a port that is not known.
            "dns" => 443,
            _ => flow.get("port").and_then(Value::as_u64).unwrap_or(443),
        };
        let key = (host.to_owned(), port);
        let has_room = self.requested.len() < MAX_LINES * 10 || self.requested.contains_key(&key);
        if has_room && text("kind") != "mcp" {
            *self.requested.entry(key).or_default() |= !is_denied;
        }
        if !is_denied {
            return;
        }
        self.decisions.asked(flow);
        let denied = Denied::of(flow, host, port, &self.masked);
        match self.denied.len() < MAX_LINES || self.denied.contains_key(&denied) {
            true => *self.denied.entry(denied).or_default() += count,
            false => self.others += count,
        }
    }

    /// The list of denials with their counts; empty if there is no denial.
    pub fn denials(&self) -> String {
        let mut text = String::new();
        let denied = self.denied.iter();
        let undecided = denied.filter(|(denied, _)| {
            !denied.waits_for_a_person() || !self.decisions.has(&denied.what)
        });
        let undecided: Vec<_> = undecided.collect();
        let width = undecided.iter().map(|(denied, _)| denied.what.len()).max();
        let Some(width) = width.map(|width| width.min(60)) else {
            return text;
        };
        text.push_str("unified-proxy: denied\n");
        for (Denied { what, remedy }, count) in undecided {
            let times = if *count == 1 { "time " } else { "times" };
            let (what, remedy) = (printable(what), printable(remedy));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {what:width$}  {count:>4} {times}  {remedy}");
        }
        if self.others > 0 {
            let _ = writeln!(text, "  and {} further denials", self.others);
        }
        text
    }

    /// What people decided; empty if nobody did. `learns`: the hosts are kept by `--learn`.
    pub fn decisions(&self, learns: bool) -> String {
        self.decisions.text(learns)
    }

    /// An allowlist in YAML with the requested hosts and ports or, if a person was asked, with those
    /// that were reached.
    pub fn allowlist(&self, asked: bool) -> String {
        let head = match asked {
            true => {
                "# The hosts that one run reached: allowed ones, and those that a person approved."
            }
            false => {
                "# The hosts that one run requested. Read the list before you use it: the command \
                 could request any host."
            }
        };
        let mut text = format!("{head}\nversion: 1\ndomains:");
        let mut hosts: BTreeMap<&str, (Vec<u64>, bool)> = BTreeMap::new();
        let requested = self.requested.iter();
        for ((host, port), allowed) in requested.filter(|(_, allowed)| !asked || **allowed) {
            let (ports, was_allowed) = hosts.entry(host).or_default();
            ports.push(*port);
            *was_allowed |= allowed;
        }
        if hosts.is_empty() {
            text.push_str(" []");
        }
        text.push('\n');
        for (host, (ports, allowed)) in hosts {
            let note = if allowed { "" } else { "  # was denied" };
            let host = Value::from(host);
            let _ = match ports.iter().all(|port| USUAL_PORTS.contains(port)) {
                true => writeln!(text, "  - {host}{note}"),
                false => writeln!(text, "  - {{ domain: {host}, ports: {ports:?} }}{note}"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests;
