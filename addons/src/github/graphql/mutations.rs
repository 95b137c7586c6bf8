//! The lists of permitted and blocked mutations.

use std::collections::HashSet;

use super::allowed::ALLOWED;
use crate::contract::{Code, Container, Denial};
use crate::github::denials::{self, PR_MERGE_BLOCKED};

/// Mutations that are denied even if the configuration allows them. They do one of:
/// - merge, or change the merge queue or auto-merge
/// - write refs without the checks of the push policy
/// - dismiss a review
/// - move an issue to another repository
/// - create, delete or reconfigure a repository or its protection
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

/// The permitted and the blocked mutations: the shipped lists with the additions of the
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutations {
    allowed: HashSet<String>,
    blocked: HashSet<String>,
    is_allowlist: bool,
}

impl Mutations {
    /// Adds mutations to the shipped lists. Without `is_allowlist`, only blocked mutations are
    /// denied.
    #[must_use]
    pub fn new(allowed: &[String], blocked: &[String], is_allowlist: bool) -> Self {
        let shipped = ALLOWED.iter().map(|(name, _)| (*name).to_owned());
        let allowed = shipped.chain(allowed.iter().cloned());
        let shipped = BLOCKED.iter().map(|name| (*name).to_owned());
        let blocked = shipped.chain(blocked.iter().cloned());
        Self {
            allowed: allowed.collect(),
            blocked: blocked.collect(),
            is_allowlist,
        }
    }

    /// Denies a blocked mutation and, in allowlist mode, one that is not listed.
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
            let denial = denials::write(&format!("mutation {name}"), container);
            return Err(denial.hint(format!(
                "add {name} under policy.allowed_graphql_mutations in policy.yaml"
            )));
        }
        Ok(())
    }
}
