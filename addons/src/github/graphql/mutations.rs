//! Which mutations may be made, and of what.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use crate::contract::{Code, Container, Denial};
use crate::github::content;
use crate::github::denials::{Denials, PR_MERGE_BLOCKED};

/// Pull requests and their comments and reviews, issues, labels, reactions.
const ALLOWED: &[&str] = &[
    "addAssigneesToAssignable",
    "addComment",
    "addLabelsToLabelable",
    "addPullRequestReview",
    "addPullRequestReviewComment",
    "addPullRequestReviewThread",
    "addPullRequestReviewThreadReply",
    "addReaction",
    "clearLabelsFromLabelable",
    "closeIssue",
    "closePullRequest",
    "convertPullRequestToDraft",
    "createIssue",
    "createLabel",
    "createPullRequest",
    "deleteIssueComment",
    "deleteLabel",
    "deletePullRequestReview",
    "deletePullRequestReviewComment",
    "markPullRequestReadyForReview",
    "minimizeComment",
    "removeAssigneesFromAssignable",
    "removeLabelsFromLabelable",
    "removeReaction",
    "reopenIssue",
    "reopenPullRequest",
    "requestReviews",
    "resolveReviewThread",
    "submitPullRequestReview",
    "unminimizeComment",
    "unresolveReviewThread",
    "updateIssue",
    "updateIssueComment",
    "updateLabel",
    "updatePullRequest",
    "updatePullRequestReview",
    "updatePullRequestReviewComment",
];

/// Denied whatever else is allowed: they merge, move branches around the push policy, or change
/// what protects a repository.
const BLOCKED: &[&str] = &[
    "archiveRepository",
    "cloneTemplateRepository",
    "createBranchProtectionRule",
    "createCommitOnBranch",
    "createRef",
    "createRepository",
    "createRepositoryRuleset",
    "deleteBranchProtectionRule",
    "deleteRef",
    "deleteRepository",
    "deleteRepositoryRuleset",
    "dequeuePullRequest",
    "disablePullRequestAutoMerge",
    "dismissPullRequestReview",
    "enablePullRequestAutoMerge",
    "enqueuePullRequest",
    "mergeBranch",
    "mergePullRequest",
    "transferIssue",
    "unarchiveRepository",
    "updateBranchProtectionRule",
    "updatePullRequestBranch",
    "updateRef",
    "updateRefs",
    "updateRepository",
    "updateRepositoryRuleset",
];

/// Ids of people, and the caller's own label of a mutation: they name nothing in a repository.
const NOT_OF_A_REPOSITORY: [&str; 5] = [
    "assigneeIds",
    "botIds",
    "clientMutationId",
    "teamIds",
    "userIds",
];

/// The most nodes that one body may name by id, as many as GitHub resolves at once.
const MAX_NODES: usize = 100;

/// The two lists, with what the configuration adds.
pub struct Mutations {
    allowed: HashSet<String>,
    blocked: HashSet<String>,
    is_allowlist: bool,
}

impl Mutations {
    /// Adds to the shipped lists. Without `is_allowlist`, only what is blocked is denied.
    #[must_use]
    pub fn new(allowed: &[String], blocked: &[String], is_allowlist: bool) -> Self {
        let join = |shipped: &[&str], added: &[String]| {
            let shipped = shipped.iter().map(|name| (*name).to_owned());
            shipped.chain(added.iter().cloned()).collect()
        };
        Self {
            allowed: join(ALLOWED, allowed),
            blocked: join(BLOCKED, blocked),
            is_allowlist,
        }
    }

    /// Whether it may be made at all.
    pub(super) fn permit(&self, name: &str, container: &Container) -> Result<(), Denial> {
        if self.blocked.contains(name) {
            let denial = if name == "mergePullRequest" {
                Denial::new(Code::ApiBlocked, PR_MERGE_BLOCKED)
            } else {
                Denial::new(Code::ApiBlocked, format!("Mutation blocked: {name}"))
            };
            return Err(denial.with("rule", name).rule(name));
        }
        if self.is_allowlist && !self.allowed.contains(name) {
            let denial = Denials::write(&format!("mutation {name}"), container);
            return Err(denial.hint(format!(
                "add {name} under policy.allowed_graphql_mutations in policy.yaml"
            )));
        }
        Ok(())
    }
}

/// What is named by node id and must turn out to lie in an authorized repository.
#[derive(Debug, Default)]
pub(in crate::github) struct Wanted {
    pub(in crate::github) nodes: BTreeSet<String>,
    /// Those of them that are put on something as labels.
    pub(in crate::github) labels: BTreeSet<String>,
}

impl Wanted {
    /// One id or a list of them. None at all names nothing.
    pub(super) fn add_nodes(&mut self, ids: &Value) -> Result<(), Denial> {
        match ids {
            Value::Null => Ok(()),
            Value::String(id) => {
                self.nodes.insert(id.clone());
                self.bounded()
            }
            Value::Array(ids) => ids.iter().try_for_each(|id| match id {
                Value::String(_) => self.add_nodes(id),
                _ => Err(super::malformed("a node id is a string")),
            }),
            _ => Err(super::malformed("a node id is a string")),
        }
    }

    fn bounded(&self) -> Result<(), Denial> {
        if self.nodes.len() > MAX_NODES {
            let why = format!("more than {MAX_NODES} nodes are named by id");
            return Err(super::malformed(&why));
        }
        Ok(())
    }

    /// The input of a mutation: what it says, and what it is about.
    pub(super) fn add_input(
        &mut self,
        mutation: &str,
        input: &Map<String, Value>,
        container: &Container,
    ) -> Result<(), Denial> {
        let names_labels = mutation == "createLabel" || mutation == "updateLabel";
        let objection = input
            .values()
            .find_map(|value| content::objection(value, names_labels));
        if let Some(objection) = objection {
            let denial = Denials::write(&format!("mutation {mutation}"), container);
            return Err(denial.with("reason", objection.to_string()));
        }
        self.add_members(input)
    }

    /// Goes through an input, whose depth is bounded by how it was read.
    fn add_members(&mut self, members: &Map<String, Value>) -> Result<(), Denial> {
        for (key, value) in members {
            if is_id(key) {
                self.add_nodes(value)?;
            }
            if key == "labelIds" {
                self.labels.extend(texts(value).map(str::to_owned));
            }
            self.add_value(value)?;
        }
        Ok(())
    }

    fn add_value(&mut self, value: &Value) -> Result<(), Denial> {
        match value {
            Value::Object(members) => self.add_members(members),
            Value::Array(items) => items.iter().try_for_each(|item| self.add_value(item)),
            _ => Ok(()),
        }
    }
}

/// A list of strings, or the one string that GraphQL takes for such a list.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let items = match value {
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    items.iter().filter_map(Value::as_str)
}

fn is_id(key: &str) -> bool {
    let named = key == "id" || key == "ids" || key.ends_with("Id") || key.ends_with("Ids");
    (named || key == "inReplyTo") && !NOT_OF_A_REPOSITORY.contains(&key)
}
