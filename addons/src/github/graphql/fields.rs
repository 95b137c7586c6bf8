//! The fields that stay in a repository, and those that lead out of it.
//!
//! A field that is not listed leads out: below it, a query may read only fields without a selection
//! and the fields in [`NAMES`]. So a field that GitHub adds later leads out until it is listed.

/// The kind of object that a selection reads fields of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// An object of an authorized repository.
    Inside,
    /// A connection of an object of an authorized repository to objects outside of the repository.
    Connection,
    /// A person, an organization, another repository. Fields without a selection may be read. A
    /// field with a selection may be read only if it is in [`NAMES`] and has no arguments.
    Outside,
    /// The schema of the API.
    Schema,
}

/// Returns the place of the selection below a field; `None` if the field may not have a selection.
pub(super) fn place_of(place: Place, field: &str, has_arguments: bool) -> Option<Place> {
    match place {
        Place::Inside if INSIDE.contains(&field) => Some(Place::Inside),
        Place::Inside if CONNECTIONS.contains(&field) => Some(Place::Connection),
        Place::Inside => Some(Place::Outside),
        Place::Connection => match field {
            "edges" => Some(Place::Connection),
            "nodes" | "node" | "pageInfo" => Some(Place::Outside),
            _ => None,
        },
        // With arguments, the client could choose the object, as with a person's
        // `organization(login:)`. A team's `organization` has no arguments.
        Place::Outside => (!has_arguments && NAMES.contains(&field)).then_some(Place::Outside),
        Place::Schema => SCHEMA.contains(&field).then_some(Place::Schema),
    }
}

/// Fields of a repository and of its objects whose result is in the same repository. This holds for
/// each field on every type that can be reached through these fields. Timelines are not listed,
/// since the `commit` of an event can belong to another repository.
const INSIDE: &[&str] = &[
    "annotations",
    "answer",
    "baseRef",
    "blame",
    "category",
    "checkRuns",
    "checkSuite",
    "checkSuites",
    "comment",
    "commentEdge",
    "comments",
    "commit",
    "commitComments",
    "commits",
    "contactLinks",
    "context",
    "contexts",
    "defaultBranchRef",
    "discussion",
    "discussionCategories",
    "discussions",
    "edges",
    "entries",
    "file",
    "files",
    "history",
    "issue",
    "issueOrPullRequest",
    "issueTemplates",
    "issues",
    "label",
    "labelable",
    "labels",
    "latestOpinionatedReviews",
    "latestRelease",
    "latestReviews",
    "mergeCommit",
    "milestone",
    "milestones",
    "node",
    "nodes",
    "object",
    "originalCommit",
    "pageInfo",
    "parents",
    "potentialMergeCommit",
    "pullRequest",
    "pullRequestReview",
    "pullRequestReviewComment",
    "pullRequestReviewThread",
    "pullRequestTemplates",
    "pullRequests",
    "ranges",
    "reaction",
    "reactionGroups",
    "reactions",
    "ref",
    "refs",
    "release",
    "releaseAssets",
    "releases",
    "replies",
    "replyTo",
    "review",
    "reviewEdge",
    "reviewThreads",
    "reviews",
    "runs",
    "status",
    "statusCheckRollup",
    "steps",
    "target",
    "thread",
    "tree",
    "workflow",
    "workflowRun",
];

/// Connections to people, projects, events and other objects outside of the repository.
const CONNECTIONS: &[&str] = &[
    "assignableUsers",
    "assignees",
    "authors",
    "languages",
    "mentionableUsers",
    "participants",
    "projectCards",
    "projectItems",
    "projects",
    "projectsV2",
    "repositoryTopics",
    "requestedReviewers",
    "reviewRequests",
    "timeline",
    "timelineItems",
];

/// Fields of an outside object that may have a selection, so that clients can read names: an
/// owner's login, a branch's name.
const NAMES: &[&str] = &[
    "actor",
    "assignee",
    "author",
    "column",
    "creator",
    "defaultBranchRef",
    "editor",
    "enabledBy",
    "label",
    "organization",
    "owner",
    "project",
    "requestedReviewer",
    "reviewer",
    "topic",
    "user",
];

const SCHEMA: &[&str] = &[
    "args",
    "directives",
    "enumValues",
    "fields",
    "inputFields",
    "interfaces",
    "mutationType",
    "ofType",
    "possibleTypes",
    "queryType",
    "subscriptionType",
    "type",
    "types",
];
