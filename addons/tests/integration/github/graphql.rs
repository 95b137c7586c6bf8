//! GraphQL bodies: every operation of every request is judged by its syntax tree.

use super::*;
use serde_json::json;
use testkit::each_row;

fn judge(body: &Value) -> Option<Code> {
    Guard::new(settings()).code("api.github.com", "POST /graphql", body)
}

fn query(text: &str) -> Option<Code> {
    judge(&json!({ "query": text }))
}

#[track_caller]
fn assert_queries(code: Option<Code>, queries: &[&str]) {
    for text in queries {
        assert_eq!(query(text), code, "{text}");
    }
}

#[test]
fn queries_that_stay_in_the_containers_repositories_pass() {
    assert_queries(
        None,
        &[
            "{ viewer { login id } rateLimit { remaining } }",
            "query Q { repository(owner: \"acme\", name: \"web\") { id name owner { login } } }",
            "{ repository(owner: \"ACME\", name: \"Web\") { pullRequests(first: 3) { nodes { title author { login } } } } }",
            "{ repository(owner: \"acme\", name: \"web\") { forks { totalCount } parent { name owner { login } defaultBranchRef { name } } } }",
            "{ repository(owner: \"acme\", name: \"web\") { pullRequest(number: 1) { reviewRequests(first: 9) { nodes { requestedReviewer { __typename ... on User { login } ... on Team { organization { login } name } } } } } } }",
            "{ repository(owner: \"acme\", name: \"web\") { issue(number: 1) { timelineItems(first: 9) { nodes { ... on ClosedEvent { actor { login } } } } } } }",
            "{ node(id: \"W1\") { ... on Issue { title comments(first: 1) { nodes { body } } } } }",
            "{ nodes(ids: [\"W1\", \"W2\"]) { id } }",
            "{ __schema { queryType { name } types { fields { name args { type { ofType { name } } } } } } }",
            "{ __type(name: \"Issue\") { fields { name } } __typename }",
            "query Q { ...R } fragment R on Query { repository(owner: \"acme\", name: \"web\") { ...S } } fragment S on Repository { name }",
            "# a comment\r{ viewer { login } }",
        ],
    );
}

#[test]
fn nodes_outside_the_containers_repositories_are_denied_on_every_path_to_them() {
    assert_queries(
        Some(Code::RepoNotAuthorized),
        &[
            "{ repository(owner: \"acme\", name: \"secret\") { name } }",
            "{ repository(owner: \"\\u0061cme\", name: \"\"\"secret\"\"\") { name } }",
            "{ ok: viewer { login } x: repository(name: \"secret\", owner: \"acme\") { name } }",
            "query A { viewer { login } } query B { repository(owner: \"acme\", name: \"secret\") { name } }",
            "{ ...F } fragment F on Query { ... on Query { repository(owner: \"acme\", name: \"secret\") { name } } }",
            "{ ... { ... @include(if: true) { repository(owner: \"acme\", name: \"secret\") { name } } } }",
            "{ node(id: \"X1\") { id } }",
            "{ node(id: \"U_somebody\") { ... on User { login } } }",
            "{ nodes(ids: [\"W1\", \"X1\"]) { id } }",
            "query Q($id: ID! = \"X1\") { node(id: $id) { id } }",
        ],
    );
    let by_variable = "query Q($o: String!, $n: String = \"secret\") { repository(owner: $o, name: $n) { name } }";
    each_row(
        [
            (json!({ "o": "acme", "n": "web" }), None),
            (json!({ "o": "acme" }), Some(Code::RepoNotAuthorized)),
            (
                json!({ "o": "acme", "n": "secret" }),
                Some(Code::RepoNotAuthorized),
            ),
            (json!({ "n": "web" }), Some(Code::MalformedRequest)),
            (json!("{}"), Some(Code::MalformedRequest)),
        ],
        |(variables, code)| {
            let body = json!({ "query": by_variable, "variables": variables });
            assert_eq!(judge(&body), code, "{body}");
        },
    );
}

#[test]
fn root_fields_that_are_not_listed_are_denied() {
    assert_queries(
        Some(Code::RepoNotAuthorized),
        &[
            "{ search(query: \"x\", type: REPOSITORY, first: 1) { nodes { ... on Repository { name } } } }",
            "{ organization(login: \"acme\") { name } }",
            "{ user(login: \"a\") { repositories(first: 1) { nodes { name } } } }",
            "{ repositoryOwner(login: \"a\") { login } }",
            "{ resource(url: \"https://github.com/acme/secret\") { url } }",
            "{ relay { viewer { login } } }",
            "{ enterprise(slug: \"a\") { name } }",
            "{ viewer { login } harmless: search(query: \"x\", type: ISSUE, first: 1) { issueCount } }",
        ],
    );
}

#[test]
fn selections_that_lead_out_of_a_repository_are_denied() {
    let inside = |selection: &str| {
        format!("{{ repository(owner: \"acme\", name: \"web\") {{ {selection} }} }}")
    };
    each_row(
        [
            "owner { repositories(first: 9) { nodes { name } } }",
            "owner { ... on Organization { repository(name: \"secret\") { name } } }",
            "forks(first: 9) { nodes { object(expression: \"HEAD:key\") { id } } }",
            "parent { object(expression: \"HEAD:key\") { ... on Blob { text } } }",
            "parent { defaultBranchRef { target { oid } } }",
            "pullRequest(number: 1) { author { ... on User { repositories(first: 9) { nodes { name } } } } }",
            "pullRequest(number: 1) { author { ... on User { organization(login: \"other\") { login } } } }",
            "pullRequest(number: 1) { headRepository { object(expression: \"HEAD:key\") { id } } }",
            "pullRequest(number: 1) { headRef { target { oid } } }",
            "assignableUsers(first: 9) { nodes { issues(first: 9) { nodes { title } } } }",
            "assignableUsers(first: 9) { edges { node { pullRequests(first: 9) { nodes { title } } } } }",
            "assignableUsers(first: 9) { nodes { gists(first: 9) { nodes { name } } } }",
            "issue(number: 1) { timelineItems(first: 9) { nodes { ... on ReferencedEvent { commit { tree { entries { name } } } } } } }",
            "issue(number: 1) { timelineItems(first: 9) { nodes { ... on CrossReferencedEvent { source { ... on Issue { comments(first: 1) { nodes { body } } } } } } } }",
            "issue(number: 1) { repository { owner { repositories(first: 9) { nodes { name } } } } }",
            "projectsV2(first: 9) { nodes { items(first: 9) { nodes { id } } } }",
            "whatever { isNew { tomorrow } }",
        ],
        |selection| {
            let code = query(&inside(selection));
            assert_eq!(code, Some(Code::RepoNotAuthorized), "{selection}");
        },
    );
    assert_queries(
        Some(Code::RepoNotAuthorized),
        &[
            "{ viewer { repositories(first: 9) { nodes { name } } } }",
            "{ viewer { ...V } } fragment V on User { repositories(first: 9) { nodes { name } } }",
            "{ node(id: \"W1\") { ... on Issue { author { ... on User { gists(first: 1) { nodes { name } } } } } } }",
            "{ __schema { ...Q } } fragment Q on Query { search(query: \"x\", type: ISSUE, first: 1) { nodes { id } } }",
        ],
    );
}

#[test]
fn allowed_mutations_are_judged_by_their_nodes_labels_and_text() {
    each_row(
        [
            (
                "addComment",
                json!({ "subjectId": "W1", "body": "hello" }),
                None,
            ),
            (
                "createPullRequest",
                json!({ "repositoryId": "W0", "baseRefName": "main", "headRefName": "topic", "title": "t", "body": "b" }),
                None,
            ),
            (
                "createIssue",
                json!({ "repositoryId": "W0", "title": "t", "assigneeIds": ["U_1"], "clientMutationId": "c" }),
                None,
            ),
            (
                "addLabelsToLabelable",
                json!({ "labelableId": "W1", "labelIds": ["W_bug"] }),
                None,
            ),
            (
                "addReaction",
                json!({ "subjectId": "W1", "content": "HEART" }),
                None,
            ),
            (
                "addComment",
                json!({ "subjectId": "X1", "body": "hello" }),
                Some(Code::RepoNotAuthorized),
            ),
            (
                "addComment",
                json!({ "subjectId": "?", "body": "hello" }),
                Some(Code::RepoNotAuthorized),
            ),
            (
                "createPullRequest",
                json!({ "repositoryId": "W0", "headRepositoryId": "X0" }),
                Some(Code::RepoNotAuthorized),
            ),
            (
                "addPullRequestReviewComment",
                json!({ "inReplyTo": "X1", "body": "b" }),
                Some(Code::RepoNotAuthorized),
            ),
            (
                "updateIssue",
                json!({ "id": "X1", "title": "t" }),
                Some(Code::RepoNotAuthorized),
            ),
            (
                "addLabelsToLabelable",
                json!({ "labelableId": "W1", "labelIds": "X_bug" }),
                Some(Code::RepoNotAuthorized),
            ),
            (
                "addLabelsToLabelable",
                json!({ "labelableId": "W1", "labelIds": ["W_automerge"] }),
                Some(Code::WriteNotAllowed),
            ),
            (
                "addLabelsToLabelable",
                json!({ "labelableId": "W1", "labelIds": "W_automerge" }),
                Some(Code::WriteNotAllowed),
            ),
            (
                "updatePullRequest",
                json!({ "pullRequestId": "W1", "labelIds": ["W_automerge"] }),
                Some(Code::WriteNotAllowed),
            ),
            (
                "createLabel",
                json!({ "repositoryId": "W0", "name": "automerge", "color": "f00" }),
                Some(Code::WriteNotAllowed),
            ),
            (
                "addComment",
                json!({ "subjectId": "W1", "body": "/merge" }),
                Some(Code::WriteNotAllowed),
            ),
            (
                "addComment",
                json!({ "subjectId": 7, "body": "b" }),
                Some(Code::MalformedRequest),
            ),
        ],
        |(mutation, input, code)| {
            let text = format!(
                "mutation M($input: Any!) {{ {mutation}(input: $input) {{ clientMutationId }} }}"
            );
            let body = json!({ "query": text, "variables": { "input": input } });
            assert_eq!(judge(&body), code, "{body}");
        },
    );
    let literal =
        "mutation { addComment(input: {subjectId: \"X1\", body: \"b\"}) { subject { id } } }";
    assert_eq!(query(literal), Some(Code::RepoNotAuthorized));
}

#[test]
fn mutations_that_are_not_allowed_are_denied_in_every_spelling() {
    each_row(
        [
            "mergePullRequest",
            "enablePullRequestAutoMerge",
            "enqueuePullRequest",
            "updatePullRequestBranch",
            "createCommitOnBranch",
            "createRef",
            "updateRef",
            "updateRefs",
            "deleteRef",
            "mergeBranch",
            "createBranchProtectionRule",
            "updateBranchProtectionRule",
            "deleteBranchProtectionRule",
            "dismissPullRequestReview",
            "deleteRepository",
            "archiveRepository",
        ],
        |name| {
            let call = format!("{name}(input: {{ id: \"W1\" }}) {{ clientMutationId }}");
            for text in [
                format!("mutation {{ {call} }}"),
                format!("mutation M {{ addComment: {call} }}"),
                format!("mutation {{ ... on Mutation {{ x: {call} }} }}"),
                format!("mutation {{ ...F }} fragment F on Mutation {{ {call} }}"),
                format!("query A {{ viewer {{ login }} }} mutation B {{ {call} }}"),
                format!(
                    "mutation\u{feff}{{,,{name}\n(input: {{ id: \"W1\" }}) @skip(if: true) {{ clientMutationId }} }}"
                ),
            ] {
                assert_eq!(query(&text), Some(Code::ApiBlocked), "{text}");
            }
        },
    );
    each_row(
        [
            "createGist",
            "addStar",
            "createProject",
            "transferIssueTomorrow",
            "MergePullRequest",
        ],
        |name| {
            let text = format!("mutation {{ {name}(input: {{}}) {{ clientMutationId }} }}");
            assert_eq!(query(&text), Some(Code::WriteNotAllowed), "{text}");
        },
    );
}

#[test]
fn the_denial_of_a_mutation_says_what_was_denied() {
    let guard = Guard::new(settings());
    each_row(
        [
            ("mergePullRequest", "PR merge blocked - use GitHub UI"),
            ("deleteRef", "Mutation blocked: deleteRef"),
            ("addStar", "Write not allowed: mutation addStar"),
        ],
        |(name, sentence)| {
            let body = json!({ "query": format!("mutation {{ {name}(input: {{}}) {{ id }} }}") });
            let denial = guard.send(
                "api.github.com",
                "POST /graphql",
                body.to_string().as_bytes(),
            );
            let denial = denial.err().unwrap();
            assert_eq!((denial.sentence(), denial.addon()), (sentence, "github"));
        },
    );
}

#[test]
fn an_approval_is_denied_whether_it_is_a_literal_a_variable_or_a_default() {
    let by_variable = "mutation M($e: PullRequestReviewEvent = APPROVE) { submitPullRequestReview(input: {pullRequestReviewId: \"W1\", event: $e}) { clientMutationId } }";
    each_row(
        [
            (
                "mutation { addPullRequestReview(input: {pullRequestId: \"W1\", event: APPROVE}) { clientMutationId } }",
                json!({}),
            ),
            (
                "mutation { submitPullRequestReview(input: {pullRequestReviewId: \"W1\", event: APPROVE}) { clientMutationId } }",
                json!({}),
            ),
            (
                "mutation M($i: X!) { addPullRequestReview(input: $i) { clientMutationId } }",
                json!({ "i": { "pullRequestId": "W1", "event": "APPROVE" } }),
            ),
            (by_variable, json!({ "e": "APPROVE" })),
            (by_variable, json!({})),
        ],
        |(text, variables)| {
            let body = json!({ "query": text, "variables": variables });
            assert_eq!(judge(&body), Some(Code::WriteNotAllowed), "{body}");
        },
    );
    let body = json!({ "query": by_variable, "variables": { "e": "COMMENT" } });
    assert_eq!(judge(&body), None);
}

#[test]
fn the_configuration_adds_to_both_lists_of_mutations() {
    let mut settings = settings();
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    settings.mutations = Mutations::new(
        &names(&["addStar", "mergePullRequest"]),
        &names(&["addComment"]),
        true,
    );
    let guard = Guard::new(settings);
    each_row(
        [
            ("addStar", None),
            ("addComment", Some(Code::ApiBlocked)),
            ("mergePullRequest", Some(Code::ApiBlocked)),
        ],
        |(name, code)| {
            let body = json!({ "query": format!("mutation {{ {name}(input: {{}}) {{ clientMutationId }} }}") });
            assert_eq!(
                guard.code("api.github.com", "POST /graphql", &body),
                code,
                "{name}"
            );
        },
    );
}

#[test]
fn every_request_of_a_batch_is_judged() {
    let fine = json!({ "query": "{ viewer { login } }" });
    let merge = json!({ "query": "mutation { mergePullRequest(input: {}) { clientMutationId } }" });
    assert_eq!(judge(&json!([fine, fine])), None);
    assert_eq!(judge(&json!([fine, merge])), Some(Code::ApiBlocked));
    assert_eq!(judge(&json!([merge])), Some(Code::ApiBlocked));
    each_row(
        [
            json!([]),
            json!([[fine]]),
            json!(["x"]),
            json!("x"),
            json!(vec![fine; 17]),
        ],
        |body| {
            assert_eq!(judge(&body), Some(Code::MalformedRequest), "{body}");
        },
    );
}

#[test]
fn a_body_that_cannot_be_judged_completely_is_refused() {
    let guard = Guard::new(settings());
    let merge = "mutation { mergePullRequest(input: {}) { clientMutationId } }";
    let two_keys = format!("{{\"query\":\"{{ viewer {{ login }} }}\",\"query\":\"{merge}\"}}");
    each_row(
        [
            two_keys.as_str(),
            "",
            "{}",
            "{\"query\":null}",
            "{\"query\":\"\"}",
            "{\"query\":\"{ viewer { login } } garbage\"}",
            "{\"query\":\"{ viewer { login }\"}",
            "{\"query\":\"{ viewer { ...Missing } }\"}",
            "{\"query\":\"{ viewer { login } } type Query { x: Int }\"}",
            "{\"query\":\"{ repository(owner: \\\"acme\\\", owner: \\\"x\\\", name: \\\"web\\\") { id } }\"}",
            "{\"query\":\"{ viewer { login } }\",\"id\":\"1\"}",
            "{\"extensions\":{\"persistedQuery\":{\"version\":1,\"sha256Hash\":\"00\"}}}",
            "{\"query\":\"{ viewer { login } }\",\"extensions\":{\"persistedQuery\":{}}}",
            merge,
        ],
        |body| {
            let denial = guard.send("api.github.com", "POST /graphql", body.as_bytes());
            assert_eq!(
                denial.err().unwrap().code(),
                Code::MalformedRequest,
                "{body}"
            );
        },
    );
}

#[test]
fn graphql_is_accepted_only_in_the_body_of_a_post() {
    let fine = json!({ "query": "{ viewer { login } }" });
    let guard = Guard::new(settings());
    each_row(
        ["POST /graphql", "POST /GraphQL/", "POST /api/graphql"],
        |line| {
            assert_eq!(guard.code("api.github.com", line, &fine), None, "{line}");
        },
    );
    each_row(
        [
            "GET /graphql?query=mutation%20%7Bx%7D",
            "GET /graphql",
            "PUT /graphql",
            "POST /graphql?query=%7Bviewer%7Blogin%7D%7D",
            "POST /graphql?extensions=%7B%7D",
        ],
        |line| {
            let code = guard.code("api.github.com", line, &fine);
            assert_eq!(code, Some(Code::MalformedRequest), "{line}");
        },
    );
    let sent = guard.send(
        "api.github.com",
        "POST /graphql",
        fine.to_string().as_bytes(),
    );
    assert_eq!(
        sent.ok().unwrap().headers["content-type"],
        "application/json; charset=utf-8"
    );
}

#[test]
fn subscriptions_are_denied() {
    assert_eq!(
        query("subscription { x { y } }"),
        Some(Code::WriteNotAllowed)
    );
}

/// Recorded requests of `gh` 2.23. In the container's repository, viewing, listing, creating,
/// commenting and closing pass. Denied are approving, merging, releasing, forking, deleting the
/// repository, searching, and requests that name no repository.
#[test]
fn recorded_requests_of_gh_pass_or_are_denied_as_listed() {
    let recorded: Value = serde_json::from_str(include_str!("gh.json")).unwrap();
    let guard = Guard::new(settings());
    each_row([("passes", true), ("denied", false)], |(part, passes)| {
        let requests = recorded[part].as_array().unwrap();
        assert!(requests.len() >= 8);
        for request in requests {
            let line = request["line"].as_str().unwrap();
            let code = guard.code("api.github.com", line, &request["body"]);
            assert_eq!(code.is_none(), passes, "{code:?} {request}");
        }
    });
}
