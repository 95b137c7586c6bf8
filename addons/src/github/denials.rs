//! The denials of this addon, with details of the requests that are allowed instead.

use super::content::{Objection, ObjectionAt};
use crate::contract::{Code, Container, Denial, Verdict};

pub(super) const PR_MERGE_BLOCKED: &str = "PR merge blocked - use GitHub UI";
pub(super) const RELEASE_BLOCKED: &str = "Release creation blocked";

/// The permitted writes, listed in the denial of any other write.
const ALLOWED: &str =
    "pull requests and their comments, reviews other than APPROVE, issues, labels, reactions";

/// Limit on the bytes of a key from the client that a denial repeats. The rest is cut.
const MAX_KEY: usize = 80;

/// Denies a write. `what` names it, for example `METHOD PATH` or `mutation NAME`.
pub(super) fn write(what: &str, container: &Container) -> Denial {
    let repos: Vec<&str> = container.repos.iter().map(|repo| &*repo.name).collect();
    Denial::new(Code::WriteNotAllowed, format!("Write not allowed: {what}"))
        .with("allowed", ALLOWED)
        .with("repos", repos)
}

/// Denies a permitted write because of a key or a value in its REST body or GraphQL input. The
/// code is `repo_not_authorized` for a branch of another repository, otherwise
/// `write_not_allowed`.
pub(super) fn body(what: &str, objected: &ObjectionAt, container: &Container) -> Denial {
    let ObjectionAt { key, objection } = objected;
    let denial = match objection {
        Objection::ForeignBranch => no_repo(objection.to_string()),
        Objection::Key(allowed) => write(what, container)
            .with("reason", objection.to_string())
            .with("allowed_keys", allowed.clone()),
        _ => write(what, container).with("reason", objection.to_string()),
    };
    match shortened(key) {
        "" => denial,
        key => denial.with("key", key),
    }
}

/// Passes if the repository is in the container's list, otherwise denies with a hint.
pub(super) fn permit_repo(repo: &str, container: &Container) -> Verdict {
    if container.repos.iter().any(|listed| listed.is(repo)) {
        return Ok(());
    }
    let denial = Denial::new(Code::RepoNotAuthorized, "Repo not authorized").with("repo", repo);
    Err(denial.hint(format!(
        "register container {} with {repo} among its repos",
        container.id
    )))
}

/// Denies a request as `repo_not_authorized`, with the repository `null`: the request names no
/// repository, or the name is unknown or must not be shown.
pub(super) fn no_repo(reason: impl Into<String>) -> Denial {
    Denial::new(Code::RepoNotAuthorized, "Repo not authorized")
        .with("repo", serde_json::Value::Null)
        .with("reason", reason.into())
}

/// Denies a GraphQL field that leads out of the container's repositories.
pub(super) fn leads_out(field: &str, why: &str) -> Denial {
    no_repo(format!("{field}: {why}")).with("field", field)
}

fn shortened(key: &str) -> &str {
    key.get(..key.floor_char_boundary(MAX_KEY)).unwrap_or(key)
}
