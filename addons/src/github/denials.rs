//! The words of this addon's denials, each with what could be done instead.

use crate::contract::{Code, Container, Denial, Verdict};

pub(super) const PR_MERGE_BLOCKED: &str = "PR merge blocked - use GitHub UI";
pub(super) const RELEASE_BLOCKED: &str = "Release creation blocked";

/// Writes that pass, for whoever was denied another one.
const ALLOWED: &str =
    "pull requests and their comments, reviews other than APPROVE, issues, labels, reactions";

/// Makes them.
pub(super) struct Denials;

impl Denials {
    /// A write outside the allowlist: `METHOD PATH`, or `mutation NAME`.
    pub(super) fn write(what: &str, container: &Container) -> Denial {
        let repos: Vec<&str> = container.repos.iter().map(|repo| &*repo.name).collect();
        Denial::new(Code::WriteNotAllowed, format!("Write not allowed: {what}"))
            .with("allowed", ALLOWED)
            .with("repos", repos)
    }

    /// Passes for a repository of the container's list.
    pub(super) fn permit_repo(repo: &str, container: &Container) -> Verdict {
        if container.repos.iter().any(|listed| listed.is(repo)) {
            return Ok(());
        }
        Err(Self::repo(repo).hint(format!(
            "register container {} with {repo} among its repos",
            container.id
        )))
    }

    /// A repository outside the container's list.
    pub(super) fn repo(repo: &str) -> Denial {
        Denial::new(Code::RepoNotAuthorized, "Repo not authorized").with("repo", repo)
    }

    /// What names no repository, or one that cannot be told.
    pub(super) fn no_repo(reason: impl Into<String>) -> Denial {
        Denial::new(Code::RepoNotAuthorized, "Repo not authorized")
            .with("repo", serde_json::Value::Null)
            .with("reason", reason.into())
    }

    /// A GraphQL field whose selection leaves the repository.
    pub(super) fn leads_out(field: &str, why: &str) -> Denial {
        Self::no_repo(format!("{field}: {why}")).with("field", field)
    }
}
