//! The writes below `/repos/OWNER/REPO/` that are allowed by default, each with the permitted keys
//! of its body.
//!
//! The keys are those of GitHub's OpenAPI description of each operation, except those that reach
//! beyond the repository, start an agent, have content that cannot be judged, or are not needed:
//!
//! - `agent_assignment` of issues starts an agent, in any repository that its `target_repo` names.
//! - `head_repo` of a pull request names another repository.
//! - `issue` of a pull request turns an existing issue, whose text was not judged, permanently into
//!   a pull request.
//! - `maintainer_can_modify` of an existing pull request opens the branch of a fork to pushes. A
//!   new pull request may have it, since both its branches belong to this repository.
//! - `duplicate_issue_id` and a label's `id` are global numbers: the first does not show which
//!   repository its issue belongs to, the second does not show the label's name.
//! - `issue_field_values` has values of fields that belong to the organization, by number.
//! - `suggest`, `confidence` and `rationale` of labels, assignees and types are annotations for
//!   GitHub's own triage, and not needed.

use http::Method;

use super::body::{Keys, Kind};

/// A write: its method, its path, and the kind of its body. In a path, `#` stands for a number and
/// `*` for any segment.
pub(super) struct Write {
    method: &'static str,
    path: &'static str,
    pub(super) body: Kind,
}

const fn write(method: &'static str, path: &'static str, body: Kind) -> Write {
    Write { method, path, body }
}

const NOTHING: Kind = Kind::Object(&[]);

/// A body with one comment.
const COMMENT: Kind = Kind::Object(&[("body", Kind::Comment)]);

const REACTION: Kind = Kind::Object(&[("content", Kind::Text)]);

const LABEL_KEYS: Keys = &[
    ("name", Kind::Label),
    ("color", Kind::Text),
    ("description", Kind::Text),
];

const LABEL: Kind = Kind::AnyOf(&[Kind::Label, Kind::Object(LABEL_KEYS)]);

/// GitHub also accepts a bare list of labels, and one bare label.
const LABELS: Kind = Kind::AnyOf(&[
    Kind::Object(&[("labels", Kind::List(&LABEL))]),
    Kind::List(&LABEL),
    Kind::Label,
]);

const ASSIGNEE: Kind = Kind::AnyOf(&[Kind::Login, Kind::Object(&[("login", Kind::Login)])]);

/// Any assignee, reviewer or team may be removed, since a removal starts no agent.
const REMOVED: Kind = Kind::List(&Kind::Text);

const NEW_ISSUE: Keys = &[
    ("title", Kind::TextOrNumber),
    ("body", Kind::Comment),
    ("assignee", Kind::Login),
    ("assignees", Kind::List(&ASSIGNEE)),
    ("labels", Kind::List(&LABEL)),
    ("milestone", Kind::TextOrNumber),
    ("type", Kind::Text),
];

const ISSUE: Keys = &[
    ("title", Kind::TextOrNumber),
    ("body", Kind::Comment),
    ("state", Kind::Text),
    ("state_reason", Kind::Text),
    ("assignee", Kind::Login),
    ("assignees", Kind::List(&ASSIGNEE)),
    ("labels", Kind::List(&LABEL)),
    ("milestone", Kind::TextOrNumber),
    ("type", Kind::Text),
];

const NEW_PULL_REQUEST: Keys = &[
    ("title", Kind::Text),
    ("body", Kind::Comment),
    ("head", Kind::Branch),
    ("base", Kind::Branch),
    ("draft", Kind::Flag),
    ("maintainer_can_modify", Kind::Flag),
];

const PULL_REQUEST: Keys = &[
    ("title", Kind::Text),
    ("body", Kind::Comment),
    ("state", Kind::Text),
    ("base", Kind::Branch),
];

/// `in_reply_to` needs no look-up: it is a comment of the pull request that the path names.
const REVIEW_COMMENT: Keys = &[
    ("body", Kind::Comment),
    ("commit_id", Kind::Text),
    ("path", Kind::Text),
    ("position", Kind::Number),
    ("side", Kind::Text),
    ("line", Kind::Number),
    ("start_line", Kind::Number),
    ("start_side", Kind::Text),
    ("in_reply_to", Kind::Number),
    ("subject_type", Kind::Text),
];

const DRAFT_COMMENT: Kind = Kind::Object(&[
    ("path", Kind::Text),
    ("position", Kind::Number),
    ("body", Kind::Comment),
    ("line", Kind::Number),
    ("side", Kind::Text),
    ("start_line", Kind::Number),
    ("start_side", Kind::Text),
]);

const REVIEW: Keys = &[
    ("commit_id", Kind::Text),
    ("body", Kind::Comment),
    ("event", Kind::Event),
    ("comments", Kind::List(&DRAFT_COMMENT)),
];

/// Any team may be requested: teams belong to the repository's organization.
const REVIEWERS: Keys = &[
    ("reviewers", Kind::List(&Kind::Login)),
    ("team_reviewers", Kind::List(&Kind::Text)),
];

/// The writes that are allowed by default. A configured pattern may allow others.
const ALLOWED: &[Write] = &[
    write("POST", "comments/#/reactions", REACTION),
    write("POST", "issues", Kind::Object(NEW_ISSUE)),
    write(
        "POST",
        "issues/#/assignees",
        Kind::Object(&[("assignees", Kind::List(&ASSIGNEE))]),
    ),
    write("POST", "issues/#/comments", COMMENT),
    write("POST", "issues/#/labels", LABELS),
    write("POST", "issues/#/reactions", REACTION),
    write("POST", "issues/comments/#/reactions", REACTION),
    write("POST", "labels", Kind::Object(LABEL_KEYS)),
    write("POST", "pulls", Kind::Object(NEW_PULL_REQUEST)),
    write("POST", "pulls/#/comments", Kind::Object(REVIEW_COMMENT)),
    write("POST", "pulls/#/comments/#/replies", COMMENT),
    write(
        "POST",
        "pulls/#/requested_reviewers",
        Kind::Object(REVIEWERS),
    ),
    write("POST", "pulls/#/reviews", Kind::Object(REVIEW)),
    write(
        "POST",
        "pulls/#/reviews/#/events",
        Kind::Object(&[("body", Kind::Comment), ("event", Kind::Event)]),
    ),
    write("POST", "pulls/comments/#/reactions", REACTION),
    write("PUT", "issues/#/labels", LABELS),
    write("PUT", "pulls/#/reviews/#", COMMENT),
    write("PATCH", "issues/#", Kind::Object(ISSUE)),
    write("PATCH", "issues/comments/#", COMMENT),
    write(
        "PATCH",
        "labels/*",
        Kind::Object(&[
            ("new_name", Kind::Label),
            ("color", Kind::Text),
            ("description", Kind::Text),
        ]),
    ),
    write("PATCH", "pulls/#", Kind::Object(PULL_REQUEST)),
    write("PATCH", "pulls/comments/#", COMMENT),
    write("DELETE", "comments/#/reactions/#", NOTHING),
    write(
        "DELETE",
        "issues/#/assignees",
        Kind::Object(&[("assignees", REMOVED)]),
    ),
    write("DELETE", "issues/#/labels", NOTHING),
    write("DELETE", "issues/#/labels/*", NOTHING),
    write("DELETE", "issues/#/reactions/#", NOTHING),
    write("DELETE", "issues/comments/#", NOTHING),
    write("DELETE", "issues/comments/#/reactions/#", NOTHING),
    write("DELETE", "labels/*", NOTHING),
    write(
        "DELETE",
        "pulls/#/requested_reviewers",
        Kind::Object(&[("reviewers", REMOVED), ("team_reviewers", REMOVED)]),
    ),
    write("DELETE", "pulls/#/reviews/#", NOTHING),
    write("DELETE", "pulls/comments/#", NOTHING),
    write("DELETE", "pulls/comments/#/reactions/#", NOTHING),
];

/// Returns the write with this method and path; `None` if it is not allowed by default. `rest` has
/// the segments after `/repos/OWNER/REPO/`, in lower case.
pub(super) fn find(method: &Method, rest: &[&str]) -> Option<&'static Write> {
    let mut of_method = ALLOWED
        .iter()
        .filter(|write| write.method == method.as_str());
    of_method.find(|write| {
        let mut segments = rest.iter();
        let fits = write
            .path
            .split('/')
            .all(|part| segments.next().is_some_and(|segment| fits(part, segment)));
        fits && segments.next().is_none()
    })
}

fn fits(part: &str, segment: &str) -> bool {
    match part {
        "#" => !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit()),
        "*" => !segment.is_empty(),
        literal => literal == segment,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::body::Judge;
    use super::super::content::Objection;
    use super::super::mentions::Mentions;
    use super::*;

    fn objection(write: &Write, body: &Value) -> Option<Objection> {
        let mentions = Mentions::new(&["@copilot".to_owned()]);
        let owner = "acme";
        let mentions = &mentions;
        let judge = Judge { owner, mentions };
        let objected = judge.objection(body, &write.body)?;
        Some(objected.objection)
    }

    /// The lists of keys of a kind, at every depth.
    fn keys(kind: &'static Kind) -> Vec<Keys> {
        match kind {
            Kind::Object(listed) => {
                let below = listed.iter().flat_map(|(_, kind)| keys(kind));
                std::iter::once(*listed).chain(below).collect()
            }
            Kind::List(kind) => keys(kind),
            Kind::AnyOf(kinds) => kinds.iter().flat_map(keys).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn every_write_has_a_list_of_keys_and_denies_any_other_key() {
        let mut wrong = Vec::new();
        for write in ALLOWED {
            let allowed = keys(&write.body);
            let names = allowed.iter().flat_map(|keys| keys.iter());
            let reaching = names.filter(|(name, _)| {
                ["agent_assignment", "head_repo", "issue", "id"].contains(name)
            });
            let foreign = json!({ "agent_assignment": {} });
            let is_denied = matches!(objection(write, &foreign), Some(Objection::Key(_)));
            if allowed.is_empty() || reaching.count() > 0 || !is_denied {
                wrong.push((write.method, write.path));
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn only_writes_of_labels_accept_a_body_that_is_not_an_object() {
        for write in ALLOWED {
            let is_labels = write.path == "issues/#/labels" && write.method != "DELETE";
            for (body, passes) in [
                (json!(["bug"]), is_labels),
                (json!("bug"), is_labels),
                (json!({}), true),
                (json!(null), false),
                (json!(7), false),
                (json!([[]]), false),
                (json!([null]), false),
            ] {
                let objection = objection(write, &body);
                let line = (write.method, write.path);
                assert_eq!(objection.is_none(), passes, "{line:?} {body} {objection:?}");
            }
        }
    }
}
