//! Look-ups at the forge (GitHub, or a self-hosted server with GitHub's API). The proxy asks the
//! forge which repository a node id or a repository number belongs to, with the credential that it
//! injects for the container.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, SANDBOX, Seen, Setup};

const HOST: &str = "api.github.com";
/// A self-hosted forge, whose API is below `/api` on the same host as its web pages.
const SELF_HOSTED: &str = "git.example.com";
const COMMENT: &str = "mutation($id:ID!,$body:String!){addComment(input:{subjectId:$id,body:$body}){clientMutationId}}";
const ASSIGN: &str = "mutation($people:[ID!]!){addAssigneesToAssignable(input:{assignableId:\"I_web\",assigneeIds:$people}){clientMutationId}}";
const LABEL: &str = "mutation($id:ID!,$labels:[ID!]!){addLabelsToLabelable(input:{labelableId:$id,labelIds:$labels}){clientMutationId}}";

/// Requests about nodes or repository numbers that the forge received: look-ups of the proxy, and
/// requests of the client. The first value is the list of node ids, or the path after
/// `/repositories/`. The second is the value of `Authorization`.
type LookUps = Arc<Mutex<Vec<(Value, Option<String>)>>>;

struct Fixture {
    asked: LookUps,
    origin: Origin,
    proxy: Proxy,
}

fn node(id: &Value) -> Value {
    let repository = |name: &str| json!({ "repository": { "nameWithOwner": name } });
    match id.as_str().unwrap() {
        "R_web" => json!({ "nameWithOwner": "Acme/Web" }),
        "I_web" => repository("Acme/Web"),
        "I_secret" => repository("acme/secret"),
        "LA_bug" => json!({ "name": "bug", "repository": { "nameWithOwner": "acme/web" } }),
        "LA_merge" => {
            json!({ "name": "auto-merge", "repository": { "nameWithOwner": "acme/web" } })
        }
        "U_ann" => json!({ "login": "ann" }),
        "BOT_agent" => json!({ "login": "copilot-swe-agent" }),
        _ => Value::Null,
    }
}

fn answer(asked: &LookUps, seen: &Seen, body: &str) -> Option<(u16, Value)> {
    let authorization = seen.header("authorization").map(str::to_owned);
    let below = if seen.authority == SELF_HOSTED {
        "/api/v3/repositories/"
    } else {
        "/repositories/"
    };
    if let Some(number) = seen.target.strip_prefix(below) {
        asked.lock().push((json!(number), authorization));
        return match number {
            "1" => Some((200, json!({ "full_name": "Acme/Web" }))),
            "2" => Some((200, json!({ "full_name": "acme/secret" }))),
            "5" => Some((503, json!({}))),
            "1/issues" => Some((200, json!([]))),
            _ => Some((404, json!({ "message": "Not Found" }))),
        };
    }
    let request: Value = serde_json::from_str(body).ok()?;
    let ids = &request["variables"]["ids"];
    if let Some(named) = ids.as_array() {
        asked.lock().push((ids.clone(), authorization));
        let short = named.iter().filter(|id| *id != "I_short");
        let nodes: Vec<Value> = short.map(node).collect();
        return Some((200, json!({ "data": { "nodes": nodes } })));
    }
    Some((200, json!({ "data": {} })))
}

fn start() -> Fixture {
    let asked = LookUps::default();
    let shared = Arc::clone(&asked);
    let origin = Origin::scripted(move |seen, body| answer(&shared, seen, body));
    let mut setup = Setup::new(&origin);
    setup.host(HOST, origin.https);
    setup.policy = Some(json!({ "version": 1, "git": { "hosts": ["github.com", SELF_HOSTED] } }));
    setup
        .credential(json!({ "name": "api", "hosts": [HOST, SELF_HOSTED], "bearer": "ghp_secret" }));
    let fixture = Fixture {
        asked,
        proxy: setup.start(),
        origin,
    };
    fixture.register();
    fixture
}

impl Fixture {
    fn register(&self) {
        self.proxy.register_as(
            json!({ "container_ip": "127.0.0.1", "container_id": SANDBOX, "repos": ["acme/web"] }),
        );
    }

    fn graphql(&self, query: &str, variables: Value) -> Value {
        let body = json!({ "query": query, "variables": variables }).to_string();
        let url = format!("https://{HOST}/graphql");
        self.proxy.curl(&["--data", &body, &url]).json()
    }

    fn comment(&self, id: &str) -> Value {
        self.graphql(COMMENT, json!({ "id": id, "body": "Seen." }))
    }

    fn label(&self, id: &str) -> Value {
        self.graphql(LABEL, json!({ "id": "I_web", "labels": [id] }))
    }
}

#[test]
fn the_repository_of_a_node_is_looked_up_at_the_forge() {
    let fixture = start();
    each_row(["I_web", "R_web"], |id| {
        assert_eq!(fixture.comment(id)["data"], json!({}), "{id}");
    });
    let reached = fixture.origin.seen().len();
    let denials = ["I_secret", "I_unknown", "../I_web"].map(|id| {
        let mut denial = fixture.comment(id);
        assert_eq!(denial["code"], "repo_not_authorized", "{id}");
        assert_eq!(denial["node"].take(), id);
        denial["flow"].take();
        denial
    });
    assert_eq!(
        denials[0], denials[1],
        "a denial does not tell whether the node exists"
    );
    let asked = fixture.origin.seen().len() - reached;
    assert_eq!(asked, 3, "only the look-ups reach the forge");
    let bearer = Some("Bearer ghp_secret".to_owned());
    let with: Vec<_> = fixture
        .asked
        .lock()
        .iter()
        .map(|(_, with)| with.clone())
        .collect();
    assert!(with.iter().all(|with| *with == bearer), "{with:?}");
    fixture.proxy.audited(
        json!({ "host": HOST, "path": "/graphql", "container_id": SANDBOX, "status": 200 }),
    );
}

#[test]
fn a_label_that_triggers_bots_is_recognized_by_its_name() {
    let fixture = start();
    assert_eq!(fixture.label("LA_bug")["data"], json!({}));
    assert_eq!(fixture.label("LA_merge")["code"], "write_not_allowed");
}

#[test]
fn an_agent_is_recognized_by_the_login_of_its_node() {
    let fixture = start();
    let assign = |id: &str| fixture.graphql(ASSIGN, json!({ "people": [id] }));
    assert_eq!(assign("U_ann")["data"], json!({}));
    let reached = fixture.origin.seen().len();
    let denial = assign("BOT_agent");
    assert_eq!(
        (&denial["code"], &denial["node"]),
        (&json!("write_not_allowed"), &json!("BOT_agent"))
    );
    assert_eq!(assign("U_unknown")["code"], "repo_not_authorized");
    // An account belongs to no repository, so it cannot be the subject of a comment.
    assert_eq!(fixture.comment("U_ann")["code"], "repo_not_authorized");
    let asked = fixture.origin.seen().len() - reached;
    assert_eq!(asked, 2, "only the look-ups reach the forge");
}

#[test]
fn a_node_is_looked_up_once_per_lease() {
    let fixture = start();
    for _ in 0..3 {
        fixture.comment("I_web");
    }
    assert_eq!(fixture.asked.lock().len(), 1);
    fixture.label("LA_bug");
    assert_eq!(
        fixture.asked.lock()[1].0,
        json!(["LA_bug"]),
        "the repository of I_web is cached"
    );
    fixture.register();
    fixture.comment("I_web");
    assert_eq!(
        fixture.asked.lock().len(),
        2,
        "an identical registration keeps the lease"
    );
    fixture
        .proxy
        .admin("DELETE", &format!("/internal/containers/{SANDBOX}"), None);
    fixture.register();
    fixture.comment("I_web");
    assert_eq!(fixture.asked.lock().len(), 3);
}

#[test]
fn a_repository_may_be_named_by_its_number() {
    let fixture = start();
    let get = |path: &str| fixture.proxy.https_get(HOST, path, &[]);
    assert_eq!(get("/repositories/1/issues").status, 200);
    assert_eq!(get("/repositories/1").status, 200);
    each_row(["/repositories/2/issues", "/repositories/3"], |path| {
        let reply = get(path);
        assert_eq!(
            (reply.status, &reply.json()["code"]),
            (403, &json!("repo_not_authorized")),
            "{path}"
        );
        assert!(!reply.text().contains("secret"), "{}", reply.text());
    });
    assert_eq!(
        get("/repositories/5").json()["code"],
        "upstream_unreachable"
    );
    let asked: Vec<Value> = fixture
        .asked
        .lock()
        .iter()
        .map(|(id, _)| id.clone())
        .collect();
    // The look-up of 1 and the request for 1/issues, the request for 1 (its look-up is cached), and
    // the look-ups of 2, 3 and 5 (their requests are denied).
    assert_eq!(json!(asked), json!(["1", "1/issues", "1", "2", "3", "5"]));
}

#[test]
fn a_request_is_denied_if_the_forges_response_lacks_a_node() {
    let fixture = start();
    let two = "{nodes(ids:[\"I_web\",\"I_short\"]){id}}";
    assert_eq!(
        fixture.graphql(two, json!({}))["code"],
        "repo_not_authorized"
    );
    assert_eq!(fixture.asked.lock().len(), 1);
    assert_eq!(fixture.comment("I_web")["data"], json!({}));
}

#[test]
fn look_ups_of_a_self_hosted_forge_go_to_its_own_api() {
    let fixture = start();
    let get = |path: &str| fixture.proxy.https_get(SELF_HOSTED, path, &[]).status;
    assert_eq!(get("/api/v3/repositories/1/issues"), 200);
    assert_eq!(get("/api/v3/repositories/2"), 403);
    let body = json!({ "query": COMMENT, "variables": { "id": "I_web", "body": "Seen." } });
    let url = format!("https://{SELF_HOSTED}/api/graphql");
    let reply = fixture
        .proxy
        .curl(&["--data", &body.to_string(), &url])
        .json();
    assert_eq!(reply["data"], json!({}));
}
