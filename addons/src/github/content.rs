//! Content that is denied: an approval, commands or labels that make a bot merge, a mention or
//! assignment of an assistant, a branch of another repository.

use thiserror::Error;

use super::mentions::Mentions;

/// Commands that bots accept as the first word of a line.
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

/// Commands that bots accept anywhere in a line, each after the bot's name.
const NAMED_COMMANDS: [(&str, &[&str]); 8] = [
    ("@dependabot", &["merge", "squash"]),
    ("@mergify", &["queue", "merge", "requeue", "squash"]),
    ("@mergifyio", &["queue", "merge", "requeue", "squash"]),
    ("@bors", &["r+", "r=", "merge", "delegate"]),
    ("bors", &["r+", "r=", "merge", "delegate"]),
    ("@homu", &["r+", "r=", "merge"]),
    ("@kodiakhq", &["merge"]),
    ("@renovatebot", &["merge", "automerge"]),
];

/// Labels on which bots merge or approve, in lower case, without spaces and punctuation.
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

/// Bots also merge on labels that contain this text, compared in the form of [`LABELS`].
const LABEL_PART: &str = "automerge";

/// Why a value is denied.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum Objection {
    #[error("only a person may approve; use COMMENT or REQUEST_CHANGES")]
    Approval,
    #[error("bots act on {0:?}; use other words")]
    Command(&'static str),
    #[error(
        "a mention of @{0} starts an agent that has its own rights; write the name without the @"
    )]
    Mention(String),
    #[error("assigning an account of {0} starts an agent that has its own rights; name a person")]
    Agent(String),
    #[error("bots act on the label {0:?}; use another label")]
    Label(String),
    /// The write does not permit the key; it permits only these keys.
    #[error("{}", wanted_keys(.0))]
    Key(Vec<&'static str>),
    /// The value is not of this type.
    #[error("the value must be {0}")]
    Type(String),
    #[error("a pull request must use branches of its own repository: BRANCH or OWNER:BRANCH")]
    ForeignBranch,
}

fn wanted_keys(allowed: &[&str]) -> String {
    if allowed.is_empty() {
        return "this write may have no keys".to_owned();
    }
    let allowed = allowed.join(", ");
    format!("this write may have only these keys: {allowed}")
}

/// An objection, and the key of the denied value, such as `comments.body`; the key is empty for the
/// body itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectionAt {
    pub(super) key: String,
    pub(super) objection: Objection,
}

pub(super) fn objection_at(key: &str, objection: Objection) -> ObjectionAt {
    let key = key.to_owned();
    ObjectionAt { key, objection }
}

/// Objects to the `event` of a review if it is `APPROVE`, in any letter case, with or without
/// spaces around it.
pub(super) fn approval(event: &str) -> Option<Objection> {
    let event = event.trim();
    event
        .eq_ignore_ascii_case("approve")
        .then_some(Objection::Approval)
}

/// The objection to the text of a comment, an issue or a review: a command to a bot, or a mention.
pub(super) fn comment(body: &str, mentions: &Mentions) -> Option<Objection> {
    command(body).or_else(|| text(body, mentions))
}

/// The objection to any other text, such as a title: a mention.
pub(super) fn text(text: &str, mentions: &Mentions) -> Option<Objection> {
    let mention = mentions.find(text)?;
    Some(Objection::Mention(mention.to_owned()))
}

pub(super) fn label(name: &str, mentions: &Mentions) -> Option<Objection> {
    if is_bot_label(name) {
        return Some(Objection::Label(name.to_owned()));
    }
    text(name, mentions)
}

/// The objection to the login of an assignee or a reviewer.
pub(super) fn login(login: &str, mentions: &Mentions) -> Option<Objection> {
    let agent = mentions.agent(login)?;
    Some(Objection::Agent(agent.to_owned()))
}

/// Objects to the name of a branch unless it is `BRANCH`, or `OWNER:BRANCH` with the owner of the
/// repository.
pub(super) fn branch(name: &str, owner: &str) -> Option<Objection> {
    let is_own = match name.split_once(':') {
        None => true,
        Some((named, branch)) => named.eq_ignore_ascii_case(owner) && !branch.contains(':'),
    };
    (!is_own).then_some(Objection::ForeignBranch)
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
            let named = NAMED_COMMANDS.iter().find(|(name, _)| *name == word);
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

fn is_bot_label(name: &str) -> bool {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    let name: String = letters.flat_map(char::to_lowercase).collect();
    name.contains(LABEL_PART) || LABELS.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn shipped() -> Mentions {
        Mentions::new(&["@copilot".to_owned()])
    }

    #[test]
    fn commands_that_bots_act_on_are_objected_to() {
        let commands = [
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
        ];
        let judged = commands.map(|body| (body, comment(body, &shipped())));
        let is_command = |found: &Option<Objection>| matches!(found, Some(Objection::Command(_)));
        let passed: Vec<_> = judged
            .iter()
            .filter(|(_, found)| !is_command(found))
            .collect();
        assert!(passed.is_empty(), "{passed:?}");
    }

    #[test]
    fn ordinary_text_is_not_objected_to() {
        let texts = [
            "This merges cleanly; see /merge-notes and src/merge.rs",
            "Thanks @dependabot, closing",
            "I would /merge it",
            "bors is a robot",
            "",
        ];
        let objected = texts.map(|body| comment(body, &shipped()));
        assert_eq!(objected, [const { None }; 5]);
    }

    #[test]
    fn an_approval_is_objected_to_in_any_letter_case() {
        each_row(["APPROVE", "approve", " Approve "], |event| {
            assert_eq!(approval(event), Some(Objection::Approval), "{event}");
        });
        each_row(["COMMENT", "REQUEST_CHANGES", "PENDING"], |event| {
            assert_eq!(approval(event), None, "{event}");
        });
    }

    #[test]
    fn labels_that_bots_act_on_are_objected_to() {
        each_row(
            [
                "automerge",
                "Auto-Merge",
                "status: automerge",
                "ready to merge",
                "LGTM",
            ],
            |name| {
                let found = label(name, &shipped());
                assert_eq!(found, Some(Objection::Label(name.to_owned())));
            },
        );
        each_row(["bug", "merge conflict"], |name| {
            assert_eq!(label(name, &shipped()), None, "{name}");
        });
        let mention = Some(Objection::Mention("copilot".to_owned()));
        assert_eq!(label("@copilot", &shipped()), mention);
    }

    #[test]
    fn a_branch_of_another_repository_is_objected_to() {
        let cases = [
            ("topic", true),
            ("topic/one", true),
            ("acme:topic", true),
            ("ACME:topic", true),
            ("other:topic", false),
            ("acme:secret:topic", false),
            ("acme :topic", false),
            (" acme:topic", false),
            (":topic", false),
            ("other/secret:topic", false),
        ];
        let wrong: Vec<_> = cases
            .into_iter()
            .filter(|(name, is_own)| branch(name, "acme").is_none() != *is_own)
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
