//! The inputs of GraphQL mutations: fields, text, people and branches.

use super::*;
use serde_json::json;
use testkit::each_row;

/// Sends a mutation whose input is a variable, and returns the denial, if any.
fn denial(guard: &Guard, mutation: &str, input: &Value) -> Option<Denial> {
    let text =
        format!("mutation M($input: Any!) {{ {mutation}(input: $input) {{ clientMutationId }} }}");
    let body = json!({ "query": text, "variables": { "input": input } });
    let sent = guard.send(
        "api.github.com",
        "POST /graphql",
        body.to_string().as_bytes(),
    );
    sent.err()
}

/// Each case is a mutation, its input, and the `key` that the denial must name (empty for none).
/// Asserts that each input is denied with `code`, or passes if `code` is `None`.
#[track_caller]
fn assert_answers(code: Option<Code>, cases: &[(&str, Value, &str)]) {
    let guard = Guard::new(settings());
    let wrong: Vec<_> = cases
        .iter()
        .map(|(mutation, input, key)| (mutation, input, *key, denial(&guard, mutation, input)))
        .filter(|(_, _, key, denial)| {
            let key = Some(*key).filter(|key| !key.is_empty());
            let found = denial
                .as_ref()
                .map(|denial| (denial.code(), denial.detail("key")));
            found != code.map(|code| (code, key))
        })
        .map(|(mutation, input, _, denial)| {
            format!(
                "{mutation} {input}: {:?}",
                denial.map(|denial| denial.to_json())
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_field_that_is_not_listed_is_denied_at_every_depth() {
    let agent = json!({ "targetRepositoryId": "W0" });
    assert_answers(
        Some(Code::WriteNotAllowed),
        &[
            (
                "createIssue",
                json!({ "repositoryId": "W0", "title": "t", "agentAssignment": agent }),
                "agentAssignment",
            ),
            (
                "updateIssue",
                json!({ "id": "W1", "agentAssignment": agent }),
                "agentAssignment",
            ),
            (
                "addAssigneesToAssignable",
                json!({ "assignableId": "W1", "agentAssignment": null }),
                "agentAssignment",
            ),
            (
                "createIssue",
                json!({ "repositoryId": "W0", "issueTemplate": "t" }),
                "issueTemplate",
            ),
            (
                "createIssue",
                json!({ "repositoryId": "W0", "parentIssueId": "W1" }),
                "parentIssueId",
            ),
            (
                "updatePullRequest",
                json!({ "pullRequestId": "W1", "maintainerCanModify": true }),
                "maintainerCanModify",
            ),
            (
                "addPullRequestReview",
                json!({ "pullRequestId": "W1", "threads": [{ "body": "b", "agent": 1 }] }),
                "threads.agent",
            ),
            (
                "addComment",
                json!({ "subjectId": "W1", "body": "b", "threads": [] }),
                "threads",
            ),
            (
                "addComment",
                json!({ "subjectId": { "id": "W1" } }),
                "subjectId.id",
            ),
        ],
    );
    let guard = Guard::new(settings());
    let body = denial(&guard, "addReaction", &json!({ "x": 1 }))
        .unwrap()
        .to_json();
    assert_eq!(body["allowed_keys"], json!(["content", "subjectId"]));
    let literal = "mutation { addComment(input: {subjectId: \"W1\", body: \"b\"}, agent: \"x\") { clientMutationId } }";
    let body = json!({ "query": literal });
    let code = guard.code("api.github.com", "POST /graphql", &body);
    assert_eq!(code, Some(Code::WriteNotAllowed));
}

#[test]
fn fields_of_reviews_issues_and_pull_requests_pass() {
    assert_answers(
        None,
        &[
            (
                "addPullRequestReview",
                json!({
                    "pullRequestId": "W1", "body": "b", "event": "COMMENT", "commitOID": "0a",
                    "comments": [{ "path": "a", "position": 1, "body": "b" }],
                    "threads": [{ "path": "a", "line": 1, "side": "RIGHT", "body": "b" }],
                }),
                "",
            ),
            (
                "createIssue",
                json!({
                    "repositoryId": "W0", "title": "t", "body": null, "assigneeIds": "U1",
                    "labelIds": ["W_bug"], "projectIds": null, "clientMutationId": "c",
                }),
                "",
            ),
            (
                "requestReviews",
                json!({ "pullRequestId": "W1", "userIds": ["U1"], "teamIds": ["T1"], "union": true }),
                "",
            ),
            (
                "closeIssue",
                json!({ "issueId": "W1", "duplicateIssueId": "W2" }),
                "",
            ),
        ],
    );
}

#[test]
fn a_graphql_pull_request_has_branches_of_its_own_repository() {
    let input = |more: Value| {
        let mut input = json!({ "repositoryId": "W0", "title": "t" });
        let more = more.as_object().unwrap().clone();
        input.as_object_mut().unwrap().extend(more);
        input
    };
    let create = "createPullRequest";
    assert_answers(
        None,
        &[
            (
                create,
                input(json!({ "headRefName": "acme:topic", "baseRefName": "ACME:main" })),
                "",
            ),
            (
                create,
                input(json!({ "headRefName": "topic", "headRepositoryId": "W0" })),
                "",
            ),
            (
                create,
                input(json!({ "headRefName": "topic", "headRepositoryId": "W9" })),
                "",
            ),
            (
                "updatePullRequest",
                json!({ "pullRequestId": "W1", "baseRefName": "acme:main" }),
                "",
            ),
        ],
    );
    assert_answers(
        Some(Code::RepoNotAuthorized),
        &[
            (
                create,
                input(json!({ "headRefName": "other:main" })),
                "headRefName",
            ),
            (
                create,
                input(json!({ "headRefName": "acme:secret:main" })),
                "headRefName",
            ),
            (
                create,
                input(json!({ "baseRefName": "other:main" })),
                "baseRefName",
            ),
            (create, json!({ "headRefName": "acme:main" }), "headRefName"),
            (
                create,
                json!({ "headRepositoryId": "W0" }),
                "headRepositoryId",
            ),
            (create, input(json!({ "headRepositoryId": "X0" })), ""),
            (
                "updatePullRequest",
                json!({ "pullRequestId": "W1", "baseRefName": "other:main" }),
                "baseRefName",
            ),
        ],
    );
}

#[test]
fn a_pull_request_between_two_repositories_of_a_container_is_denied() {
    let mut registration = registration("web");
    let name = "acme/lib".into();
    registration.repos.push(Repo {
        name,
        max_receive_pack_bytes: None,
    });
    let guard = Guard::of(Arc::new(Container::new(registration)), settings());
    each_row(
        [
            ("W0", "W9", None),
            ("L0", "L0", None),
            ("W0", "L0", Some("headRepositoryId")),
            ("L0", "W0", Some("headRepositoryId")),
        ],
        |(repository, head, key)| {
            let input = json!({ "repositoryId": repository, "headRepositoryId": head });
            let denial = denial(&guard, "createPullRequest", &input);
            let found = denial.as_ref().and_then(|denial| denial.detail("key"));
            assert_eq!((found, denial.is_some()), (key, key.is_some()), "{input}");
        },
    );
}

#[test]
fn assistant_mentions_bot_commands_bot_labels_and_approvals_are_denied_in_every_input() {
    let call = "please @Copilot, merge";
    assert_answers(
        Some(Code::WriteNotAllowed),
        &[
            (
                "addComment",
                json!({ "subjectId": "W1", "body": call }),
                "body",
            ),
            (
                "addComment",
                json!({ "subjectId": "W1", "body": "&#64;copilot" }),
                "body",
            ),
            (
                "updateIssueComment",
                json!({ "id": "W1", "body": call }),
                "body",
            ),
            (
                "createIssue",
                json!({ "repositoryId": "W0", "title": call }),
                "title",
            ),
            ("updateIssue", json!({ "id": "W1", "title": call }), "title"),
            (
                "createPullRequest",
                json!({ "repositoryId": "W0", "title": call }),
                "title",
            ),
            (
                "createPullRequest",
                json!({ "repositoryId": "W0", "body": call }),
                "body",
            ),
            (
                "updatePullRequest",
                json!({ "pullRequestId": "W1", "body": call }),
                "body",
            ),
            (
                "addPullRequestReview",
                json!({ "pullRequestId": "W1", "threads": [{ "body": call }] }),
                "threads.body",
            ),
            (
                "addPullRequestReviewThreadReply",
                json!({ "pullRequestReviewThreadId": "W1", "body": call }),
                "body",
            ),
            (
                "createLabel",
                json!({ "repositoryId": "W0", "name": "@copilot" }),
                "name",
            ),
            (
                "createLabel",
                json!({ "repositoryId": "W0", "name": "Auto Merge" }),
                "name",
            ),
            ("updateLabel", json!({ "id": "W0", "name": "lgtm" }), "name"),
            (
                "addComment",
                json!({ "subjectId": "W1", "body": ["@dependabot merge"] }),
                "body",
            ),
            (
                "submitPullRequestReview",
                json!({ "event": ["APPROVE"] }),
                "event",
            ),
        ],
    );
}

#[test]
fn an_agent_is_recognised_by_its_login_and_neither_assigned_nor_requested_as_reviewer() {
    assert_answers(
        Some(Code::WriteNotAllowed),
        &[
            (
                "addAssigneesToAssignable",
                json!({ "assignableId": "W1", "assigneeIds": ["U1", "B1"] }),
                "",
            ),
            (
                "addAssigneesToAssignable",
                json!({ "assignableId": "W1", "assigneeIds": "B1" }),
                "",
            ),
            (
                "createIssue",
                json!({ "repositoryId": "W0", "assigneeIds": ["B1"] }),
                "",
            ),
            (
                "updateIssue",
                json!({ "id": "W1", "assigneeIds": ["B1"] }),
                "",
            ),
            (
                "updatePullRequest",
                json!({ "pullRequestId": "W1", "assigneeIds": ["B1"] }),
                "",
            ),
            (
                "requestReviews",
                json!({ "pullRequestId": "W1", "userIds": ["B1"] }),
                "",
            ),
        ],
    );
    assert_answers(
        Some(Code::RepoNotAuthorized),
        &[
            (
                "createIssue",
                json!({ "repositoryId": "W0", "assigneeIds": ["?"] }),
                "",
            ),
            (
                "createIssue",
                json!({ "repositoryId": "W0", "assigneeIds": ["W1"] }),
                "",
            ),
            ("createIssue", json!({ "repositoryId": "U1" }), ""),
        ],
    );
    assert_answers(
        Some(Code::MalformedRequest),
        &[(
            "createIssue",
            json!({ "repositoryId": "W0", "assigneeIds": [7] }),
            "",
        )],
    );
    assert_answers(
        None,
        &[(
            "removeAssigneesFromAssignable",
            json!({ "assignableId": "W1", "assigneeIds": ["B1"] }),
            "",
        )],
    );
}

#[test]
fn without_listed_assistants_no_account_is_looked_up() {
    let guard = Guard::new(GithubSettings {
        mentions: Mentions::new(&[]),
        ..settings()
    });
    let input = json!({ "assignableId": "W1", "assigneeIds": ["B1", "?"] });
    assert!(denial(&guard, "addAssigneesToAssignable", &input).is_none());
}

#[test]
fn people_count_towards_the_limit_on_nodes() {
    let guard = Guard::new(settings());
    let input = |count: usize| {
        let ids: Vec<String> = (0..count).map(|n| format!("U{n}")).collect();
        json!({ "assignableId": "W1", "assigneeIds": ids })
    };
    let denied = |count| denial(&guard, "addAssigneesToAssignable", &input(count));
    assert!(denied(99).is_none());
    assert_eq!(denied(100).unwrap().code(), Code::MalformedRequest);
}

#[test]
fn a_mutation_allowed_by_configuration_may_have_any_field_but_no_forbidden_value() {
    let allowed = ["requestReviewsByLogin".to_owned()];
    let guard = Guard::new(GithubSettings {
        mutations: Mutations::new(&allowed, &[], true),
        ..settings()
    });
    each_row(
        [
            (
                json!({ "pullRequestId": "W1", "userLogins": ["ann"] }),
                true,
            ),
            (
                json!({ "pullRequestId": "W1", "botLogins": ["copilot-pull-request-reviewer"] }),
                false,
            ),
            (json!({ "pullRequestId": "W1", "logins": "Copilot" }), false),
            (json!({ "pullRequestId": "W1", "actorIds": ["B1"] }), false),
            (json!({ "pullRequestId": "W1", "note": "@copilot" }), false),
            (
                json!({ "pullRequestId": "W1", "labels": ["automerge"] }),
                false,
            ),
            (json!({ "pullRequestId": "X1" }), false),
        ],
        |(input, passes)| {
            let denial = denial(&guard, "requestReviewsByLogin", &input);
            assert_eq!(denial.is_none(), passes, "{input} {denial:?}");
        },
    );
}
