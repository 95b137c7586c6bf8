//! A stand-in for GitHub's GraphQL API. With it, `gh` can show and open a pull request and comment
//! on an issue, and the proxy can look up the repositories of node ids.

use http::StatusCode;
use serde_json::{Value, json};

use super::routes::{Body, text, with_header};

/// The response to a GraphQL request, chosen by the names that its query contains.
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
    } else if query.contains("nodes(ids:") {
        let ids = request["variables"]["ids"].as_array().unwrap();
        json!({ "nodes": ids.iter().map(node).collect::<Vec<_>>() })
    } else if query.contains("createPullRequest") {
        let created = json!({ "id": "PR_2", "url": "https://github.com/acme/web/pull/2" });
        json!({ "createPullRequest": { "pullRequest": created } })
    } else if query.contains("addComment") {
        let url = "https://github.com/acme/web/issues/7#issuecomment-1";
        json!({ "addComment": { "commentEdge": { "node": { "url": url } } } })
    } else if query.contains("RepositoryNetwork") {
        json!({ "viewer": { "login": "ann" }, "repo_000": repository() })
    } else {
        json!({
            "viewer": { "login": "ann" },
            "repository": repository(),
        })
    };
    let response = text(StatusCode::OK, &json!({ "data": data }).to_string());
    with_header(response, "content-type", "application/json")
}

/// The node with this id. `U_LOGIN` is the user `LOGIN`, and `R_NAME` is the repository
/// `acme/NAME`. An id with other letters before `_NAME` is an object in `acme/NAME`; digits at the
/// end of `NAME` are ignored. Null if `gone` follows the `_`, or if the id has no `_`.
fn node(id: &Value) -> Value {
    let id = id.as_str().unwrap();
    match id.split_once('_') {
        Some((_, "gone")) | None => Value::Null,
        Some(("U", login)) => json!({ "login": login }),
        Some(("R", name)) => json!({ "nameWithOwner": format!("acme/{name}") }),
        Some((_, name)) => {
            let name = name.trim_end_matches(|c: char| c.is_ascii_digit());
            json!({ "repository": { "nameWithOwner": format!("acme/{name}") } })
        }
    }
}

fn repository() -> Value {
    let issue = json!({
        "__typename": "Issue", "id": "I_web7", "number": 7, "title": "A bug", "state": "OPEN",
        "url": "https://github.com/acme/web/issues/7", "comments": { "nodes": [], "totalCount": 0 },
    });
    json!({
        "id": "R_web", "name": "web", "owner": { "id": "O_acme", "login": "acme" },
        "viewerPermission": "WRITE", "isPrivate": true, "hasIssuesEnabled": true,
        "defaultBranchRef": { "name": "main" }, "parent": null,
        "pullRequest": pull_request(), "pullRequests": { "nodes": [], "totalCount": 0 },
        "issue": issue, "hasIssue": issue,
    })
}

fn pull_request() -> Value {
    let none = json!({ "nodes": [], "totalCount": 0 });
    json!({
        "id": "PR_web1", "number": 1, "title": "Add a file", "state": "OPEN",
        "body": "It adds a file.", "url": "https://github.com/acme/web/pull/1",
        "author": { "login": "ann" }, "isDraft": false, "mergeable": "MERGEABLE",
        "mergeStateStatus": "CLEAN", "baseRefName": "main", "headRefName": "topic",
        "headRepositoryOwner": { "login": "acme" }, "headRepository": { "name": "web" },
        "commits": { "totalCount": 1 }, "comments": none, "reviews": none, "labels": none,
        "assignees": none, "projectCards": none, "reviewRequests": none, "reactionGroups": [],
    })
}
