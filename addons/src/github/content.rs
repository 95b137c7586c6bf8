//! What may not be said: an approval, and words or labels that make a bot merge.

use std::fmt;

use serde_json::Value;

/// Commands that merge bots take from the beginning of a line.
const LINE_COMMANDS: [&str; 12] = [
    "/approve",
    "/auto-merge",
    "/automerge",
    "/lgtm",
    "/merge",
    "/ok-to-merge",
    "/ok-to-test",
    "/queue",
    "/rebase-merge",
    "/ship",
    "/shipit",
    "/squash",
];

/// Commands that bots take wherever in a line they are called by name.
const MENTIONS: [(&str, &[&str]); 8] = [
    ("@dependabot", &["merge", "squash"]),
    ("@mergify", &["queue", "merge", "requeue", "squash"]),
    ("@mergifyio", &["queue", "merge", "requeue", "squash"]),
    ("@bors", &["r+", "r=", "merge", "delegate"]),
    ("bors", &["r+", "r=", "merge", "delegate"]),
    ("@homu", &["r+", "r=", "merge"]),
    ("@kodiakhq", &["merge"]),
    ("@renovatebot", &["merge", "automerge"]),
];

/// Labels on which bots merge or approve, without regard to case and punctuation.
const LABELS: [&str; 14] = [
    "approved",
    "autoapprove",
    "autoland",
    "autosquash",
    "bors",
    "landit",
    "lgtm",
    "mergeit",
    "mergepr",
    "mergequeue",
    "mergewhengreen",
    "mergewhenready",
    "readytomerge",
    "shipit",
];

/// Part of the name of any label like it.
const LABEL_PART: &str = "automerge";

/// Why a text does not go out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Objection {
    Approval,
    Command(&'static str),
    Label(String),
    Unreadable(&'static str),
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Approval => {
                f.write_str("a person approves; reviews may COMMENT or REQUEST_CHANGES")
            }
            Self::Command(command) => write!(f, "bots obey {command:?}; say it in other words"),
            Self::Label(label) => write!(f, "bots obey the label {label:?}; use another one"),
            Self::Unreadable(key) => write!(f, "{key:?} is not a string"),
        }
    }
}

/// The first objection to what a body or an input says, at any depth. With `names_labels`, all
/// of its strings are names of labels.
pub(super) fn objection(value: &Value, names_labels: bool) -> Option<Objection> {
    match value {
        Value::Object(members) => members.iter().find_map(|(key, value)| match key.as_str() {
            "body" => text_objection(value, "body", command),
            "event" => text_objection(value, "event", approval),
            "labels" => objection(value, true),
            _ => objection(value, names_labels),
        }),
        Value::Array(items) => items.iter().find_map(|item| objection(item, names_labels)),
        Value::String(name) if names_labels && is_bot_label(name) => {
            Some(Objection::Label(name.clone()))
        }
        _ => None,
    }
}

fn text_objection(
    value: &Value,
    key: &'static str,
    judge: impl Fn(&str) -> Option<Objection>,
) -> Option<Objection> {
    match value {
        Value::Null => None,
        Value::String(text) => judge(text),
        _ => Some(Objection::Unreadable(key)),
    }
}

fn approval(event: &str) -> Option<Objection> {
    let event = event.trim();
    event
        .eq_ignore_ascii_case("approve")
        .then_some(Objection::Approval)
}

fn command(body: &str) -> Option<Objection> {
    body.split(['\n', '\r']).find_map(|line| {
        let line = line.to_lowercase();
        let mut words = line.split_whitespace();
        let first = words.clone().next()?;
        if let Some(command) = LINE_COMMANDS.iter().find(|command| **command == first) {
            return Some(Objection::Command(command));
        }
        while let Some(word) = words.next() {
            let named = MENTIONS.iter().find(|(name, _)| *name == word);
            let said = named.and_then(|(_, commands)| {
                let next = words.clone().next()?;
                commands.iter().find(|command| next.starts_with(**command))
            });
            if let Some(said) = said {
                return Some(Objection::Command(said));
            }
        }
        None
    })
}

/// Whether bots act on a label.
pub(super) fn is_bot_label(name: &str) -> bool {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    let name: String = letters.flat_map(char::to_lowercase).collect();
    name.contains(LABEL_PART) || LABELS.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_that_bots_obey_are_objected_to() {
        for body in [
            "/merge",
            "fine\n  /Merge squash",
            "fine\r/merge",
            "/lgtm",
            "@dependabot merge",
            "@Dependabot   squash and merge",
            "please @dependabot merge",
            "bors r+",
            "@bors r=me",
            "@mergifyio queue",
        ] {
            assert!(
                objection(&json!({ "body": body }), false).is_some(),
                "{body}"
            );
            let review = json!({ "comments": [{ "path": "a", "body": body }] });
            assert!(objection(&review, false).is_some(), "{body}");
        }
    }

    #[test]
    fn what_people_write_is_not() {
        for body in [
            "This merges cleanly; see /merge-notes and src/merge.rs",
            "Thanks @dependabot, closing",
            "I would /merge it",
            "bors is a robot",
            "",
        ] {
            assert_eq!(objection(&json!({ "body": body }), false), None, "{body}");
        }
        assert_eq!(objection(&json!({ "body": null }), false), None);
    }

    #[test]
    fn an_approval_is_objected_to_in_every_spelling() {
        for event in [
            json!("APPROVE"),
            json!("approve"),
            json!(" Approve "),
            json!(["APPROVE"]),
        ] {
            assert!(
                objection(&json!({ "event": event }), false).is_some(),
                "{event}"
            );
        }
        for event in ["COMMENT", "REQUEST_CHANGES", "PENDING"] {
            assert_eq!(objection(&json!({ "event": event }), false), None);
        }
    }

    #[test]
    fn labels_that_bots_obey_are_objected_to() {
        for label in [
            "automerge",
            "Auto-Merge",
            "status: automerge",
            "ready to merge",
            "LGTM",
        ] {
            assert!(
                objection(&json!({ "labels": [label] }), false).is_some(),
                "{label}"
            );
            assert!(objection(&json!({ "labels": [{ "name": label }] }), false).is_some());
            assert!(objection(&json!([label]), true).is_some());
            assert_eq!(objection(&json!({ "title": label }), false), None);
        }
        assert_eq!(
            objection(&json!({ "labels": ["bug", "merge conflict"] }), false),
            None
        );
    }
}
