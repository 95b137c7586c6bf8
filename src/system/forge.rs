//! Asks a forge whose a number or a node is, on a container's behalf.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::BoxFuture;
use addons::github::{Asker, Forge, Node};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::SystemClient;

/// How long an answer is believed: repositories are renamed and issues move.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// What a lease remembers.
const KEPT: usize = 4096;

/// Every type that names its repository; nodes of others stay unknown.
const NODES: &str = "query($ids:[ID!]!){nodes(ids:$ids){\
    ...on Repository{nameWithOwner}\
    ...on RepositoryNode{repository{nameWithOwner}}\
    ...on GitObject{repository{nameWithOwner}}\
    ...on Label{name repository{nameWithOwner}}\
    ...on Milestone{repository{nameWithOwner}}\
    ...on PullRequestReviewThread{repository{nameWithOwner}}\
    ...on Ref{repository{nameWithOwner}}\
    ...on Release{repository{nameWithOwner}}}}";

/// A forge that is asked with the container's own credential, through the chain.
pub struct AskedForge {
    client: Arc<SystemClient>,
}

impl AskedForge {
    pub fn new(client: Arc<SystemClient>) -> Self {
        Self { client }
    }

    async fn ask(&self, asker: &Asker, request: Request<Bytes>) -> Option<Value> {
        let sent = self.client.look_up(&asker.container, request).await;
        // Why it failed is on the audit's line of the look-up.
        let response = sent.ok()?;
        (response.status() == StatusCode::OK)
            .then(|| serde_json::from_slice(response.body()).ok())
            .flatten()
    }

    async fn ask_repo(&self, asker: &Asker, id: u64) -> Option<String> {
        let below = if asker.prefix.is_empty() { "" } else { "/v3" };
        let request = Request::get(url(asker, &format!("{below}/repositories/{id}")));
        let request = request
            .header(USER_AGENT, "unified-proxy")
            .header(ACCEPT, "application/vnd.github+json")
            .body(Bytes::new());
        let answer = self.ask(asker, request.ok()?).await?;
        Some(answer.get("full_name")?.as_str()?.to_owned())
    }

    async fn ask_nodes(&self, asker: &Asker, ids: &[&String]) -> Option<Vec<Option<Node>>> {
        let body = json!({ "query": NODES, "variables": { "ids": ids } });
        let request = Request::post(url(asker, "/graphql"))
            .header(USER_AGENT, "unified-proxy")
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string().into());
        let answer = self.ask(asker, request.ok()?).await?;
        let nodes = answer.pointer("/data/nodes")?.as_array()?;
        // One too few or too many, and an answer would be taken for another's.
        (nodes.len() == ids.len()).then(|| nodes.iter().map(node).collect())
    }
}

impl Forge for AskedForge {
    fn repo_of_id<'a>(&'a self, asker: Asker, id: u64) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let known = asker.container.owned(Known::default);
            let key = Key::new(&asker, id.to_string());
            if let Some(node) = known.find(&key) {
                return Some(node.repo);
            }
            let repo = self.ask_repo(&asker, id).await?;
            let node = Node {
                repo: repo.clone(),
                label: None,
            };
            known.keep(key, node);
            Some(repo)
        })
    }

    fn nodes<'a>(&'a self, asker: Asker, ids: Vec<String>) -> BoxFuture<'a, Vec<Option<Node>>> {
        Box::pin(async move {
            let known = asker.container.owned(Known::default);
            let mut nodes: Vec<Option<Node>> = ids
                .iter()
                .map(|id| known.find(&Key::new(&asker, id.clone())))
                .collect();
            let mut unknown: Vec<(&String, &mut Option<Node>)> = ids
                .iter()
                .zip(&mut nodes)
                .filter(|(_, node)| node.is_none())
                .collect();
            let asked: Vec<&String> = unknown.iter().map(|(id, _)| *id).collect();
            if asked.is_empty() {
                return nodes;
            }
            let answers = self.ask_nodes(&asker, &asked).await.unwrap_or_default();
            for ((id, node), answer) in unknown.iter_mut().zip(answers) {
                if let Some(answer) = &answer {
                    known.keep(Key::new(&asker, (*id).clone()), answer.clone());
                }
                **node = answer;
            }
            nodes
        })
    }
}

fn url(asker: &Asker, path: &str) -> String {
    let Asker {
        host, port, prefix, ..
    } = asker;
    match port {
        443 => format!("https://{host}{prefix}{path}"),
        _ => format!("https://{host}:{port}{prefix}{path}"),
    }
}

fn node(value: &Value) -> Option<Node> {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str);
    let repo = text("/repository/nameWithOwner").or_else(|| text("/nameWithOwner"))?;
    Some(Node {
        repo: repo.to_owned(),
        label: text("/name").map(str::to_owned),
    })
}

/// What a lease was told, so that it asks once.
#[derive(Default)]
struct Known(Mutex<HashMap<Key, (Instant, Node)>>);

#[derive(PartialEq, Eq, Hash)]
struct Key {
    authority: String,
    id: String,
}

impl Key {
    fn new(asker: &Asker, id: String) -> Self {
        let authority = url(asker, "");
        Self { authority, id }
    }
}

impl Known {
    fn find(&self, key: &Key) -> Option<Node> {
        let known = self.0.lock();
        let (at, node) = known.get(key)?;
        (at.elapsed() < KEPT_FOR).then(|| node.clone())
    }

    fn keep(&self, key: Key, node: Node) {
        let mut known = self.0.lock();
        if known.len() >= KEPT {
            known.retain(|_, (at, _)| at.elapsed() < KEPT_FOR);
        }
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(key, (Instant::now(), node));
    }
}
