//! Which fields stay in a repository, and which lead out of it.
//!
//! A field that nobody listed leads out. So what the API gains tomorrow is closed until it is
//! listed here.

/// Where a selection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On something that belongs to an authorized repository.
    Inside,
    /// On a list, within a repository, of what does not belong to it.
    Connection,
    /// On a person, an organization, another repository: names and numbers only.
    Outside,
    /// On the description of the API itself.
    Schema,
}

/// Where the selection of a field stands; `None` where the field must not have one.
pub(super) fn lead(place: Place, field: &str, has_arguments: bool) -> Option<Place> {
    match place {
        Place::Inside if INSIDE.contains(&field) => Some(Place::Inside),
        Place::Inside if CONNECTIONS.contains(&field) => Some(Place::Connection),
        Place::Inside => Some(Place::Outside),
        Place::Connection => match field {
            "edges" => Some(Place::Connection),
            "nodes" | "node" | "pageInfo" => Some(Place::Outside),
            _ => None,
        },
        // Arguments choose: `organization(login:)` of a person is another thing than that of a team.
        Place::Outside => (!has_arguments && NAMES.contains(&field)).then_some(Place::Outside),
        Place::Schema => SCHEMA.contains(&field).then_some(Place::Schema),
    }
}

/// Fields of repositories, and of what lies in them, that answer what lies in the same one. None
/// of them may do otherwise on any type that this list leads to: `commit` of an event in a
/// timeline can be another repository's, so timelines are not in it.
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

/// Lists of people, projects and events.
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

/// What has a name of its own, one step further: an owner's login, a branch's name.
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
