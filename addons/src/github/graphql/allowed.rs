//! The permitted mutations, each with the permitted fields of its input.
//!
//! They cover pull requests and their comments and reviews, issues, labels, and reactions. The
//! fields are from GitHub's public GraphQL schema. Fields that reach beyond the repository or the
//! request, or that start an agent, are not listed, such as:
//!
//! - `agentAssignment` starts an agent, in any repository that it names.
//! - `issueTemplate` takes labels and assignees from a file that is not part of the request.
//! - `parentIssueId` also changes the parent issue. The REST write that does this is not permitted
//!   either.
//! - `maintainerCanModify` of an existing pull request opens the branch of a fork to pushes. A new
//!   pull request may have it, since both its branches belong to this repository.
//!
//! `headRepositoryId` is listed, and must name the same repository as `repositoryId`.

/// A mutation with its fields; `threads.body` is a field of the objects in `threads`.
type Mutation = (&'static str, &'static [&'static str]);

/// A field of every input: an identifier that the client chooses and the server returns unchanged.
const OF_EVERY_INPUT: &str = "clientMutationId";

pub(super) const ALLOWED: &[Mutation] = &[
    ("addAssigneesToAssignable", &["assignableId", "assigneeIds"]),
    ("addComment", &["body", "subjectId"]),
    ("addLabelsToLabelable", &["labelIds", "labelableId"]),
    (
        "addPullRequestReview",
        &[
            "body",
            "comments",
            "comments.body",
            "comments.path",
            "comments.position",
            "commitOID",
            "event",
            "pullRequestId",
            "threads",
            "threads.body",
            "threads.line",
            "threads.path",
            "threads.side",
            "threads.startLine",
            "threads.startSide",
        ],
    ),
    (
        "addPullRequestReviewComment",
        &[
            "body",
            "commitOID",
            "inReplyTo",
            "path",
            "position",
            "pullRequestId",
            "pullRequestReviewId",
        ],
    ),
    (
        "addPullRequestReviewThread",
        &[
            "body",
            "line",
            "path",
            "pullRequestId",
            "pullRequestReviewId",
            "side",
            "startLine",
            "startSide",
            "subjectType",
        ],
    ),
    (
        "addPullRequestReviewThreadReply",
        &["body", "pullRequestReviewId", "pullRequestReviewThreadId"],
    ),
    ("addReaction", &["content", "subjectId"]),
    ("clearLabelsFromLabelable", &["labelableId"]),
    (
        "closeIssue",
        &["duplicateIssueId", "issueId", "stateReason"],
    ),
    ("closePullRequest", &["pullRequestId"]),
    ("convertPullRequestToDraft", &["pullRequestId"]),
    (
        "createIssue",
        &[
            "assigneeIds",
            "body",
            "labelIds",
            "milestoneId",
            "projectIds",
            "repositoryId",
            "title",
        ],
    ),
    (
        "createLabel",
        &["color", "description", "name", "repositoryId"],
    ),
    (
        "createPullRequest",
        &[
            "baseRefName",
            "body",
            "draft",
            "headRefName",
            "headRepositoryId",
            "maintainerCanModify",
            "repositoryId",
            "title",
        ],
    ),
    ("deleteIssueComment", &["id"]),
    ("deleteLabel", &["id"]),
    ("deletePullRequestReview", &["pullRequestReviewId"]),
    ("deletePullRequestReviewComment", &["id"]),
    ("markPullRequestReadyForReview", &["pullRequestId"]),
    ("minimizeComment", &["classifier", "subjectId"]),
    (
        "removeAssigneesFromAssignable",
        &["assignableId", "assigneeIds"],
    ),
    ("removeLabelsFromLabelable", &["labelIds", "labelableId"]),
    ("removeReaction", &["content", "subjectId"]),
    ("reopenIssue", &["issueId"]),
    ("reopenPullRequest", &["pullRequestId"]),
    (
        "requestReviews",
        &["pullRequestId", "teamIds", "union", "userIds"],
    ),
    ("resolveReviewThread", &["threadId"]),
    (
        "submitPullRequestReview",
        &["body", "event", "pullRequestId", "pullRequestReviewId"],
    ),
    ("unminimizeComment", &["subjectId"]),
    ("unresolveReviewThread", &["threadId"]),
    (
        "updateIssue",
        &[
            "assigneeIds",
            "body",
            "id",
            "labelIds",
            "milestoneId",
            "projectIds",
            "state",
            "title",
        ],
    ),
    ("updateIssueComment", &["body", "id"]),
    ("updateLabel", &["color", "description", "id", "name"]),
    (
        "updatePullRequest",
        &[
            "assigneeIds",
            "baseRefName",
            "body",
            "labelIds",
            "milestoneId",
            "projectIds",
            "pullRequestId",
            "state",
            "title",
        ],
    ),
    ("updatePullRequestReview", &["body", "pullRequestReviewId"]),
    (
        "updatePullRequestReviewComment",
        &["body", "pullRequestReviewCommentId"],
    ),
];

/// The permitted fields of a mutation's input; `None` for a mutation that is not listed.
pub(super) fn fields(mutation: &str) -> Option<&'static [&'static str]> {
    let listed = ALLOWED.iter().find(|(name, _)| *name == mutation);
    listed.map(|(_, fields)| *fields)
}

/// Whether a mutation's input may have the field.
pub(super) fn has(fields: &[&str], field: &str) -> bool {
    field == OF_EVERY_INPUT || fields.contains(&field)
}
