//! A stand-in of GitHub's API, as far as `gh` needs one to show a pull request.

use http::StatusCode;
use serde_json::{Value, json};

use super::routes::{Body, text, with_header};

/// Answers a GraphQL request by the names in it.
pub fn graphql(body: &[u8]) -> http::Response<Body> {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let query = request["query"].as_str().unwrap_or_default();
    let fields = json!({ "fields": [{ "name": "merged" }, { "name": "visibility" }] });
    let data = if query.contains("__type(") {
        let types = ["PullRequest", "Repository", "Issue"];
        let asked = types
            .into_iter()
            .filter(|name| query.contains(&format!("{name}: __type(")));
        asked
            .map(|name| (name.to_owned(), fields.clone()))
            .collect()
    } else {
        json!({
            "viewer": { "login": "ann" },
            "repository": { "id": "R_web", "name": "web", "pullRequest": pull_request() },
        })
    };
    let response = text(StatusCode::OK, &json!({ "data": data }).to_string());
    with_header(response, "content-type", "application/json")
}

fn pull_request() -> Value {
    let none = json!({ "nodes": [], "totalCount": 0 });
    json!({
        "id": "PR_1", "number": 1, "title": "Add a file", "state": "OPEN",
        "body": "It adds a file.", "url": "https://github.com/acme/web/pull/1",
        "author": { "login": "ann" }, "isDraft": false, "mergeable": "MERGEABLE",
        "mergeStateStatus": "CLEAN", "baseRefName": "main", "headRefName": "topic",
        "headRepositoryOwner": { "login": "acme" }, "headRepository": { "name": "web" },
        "commits": { "totalCount": 1 }, "comments": none, "reviews": none, "labels": none,
        "assignees": none, "projectCards": none, "reviewRequests": none, "reactionGroups": [],
    })
}
