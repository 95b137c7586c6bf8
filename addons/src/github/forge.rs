//! Looks up repository numbers and node ids at a forge, on behalf of a container.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::denials::permit_repo;
use crate::contract::{Code, Container, Denial, Fault, Host, Outbound, OutboundError};

/// Time for which a result is cached. It is short, since repositories can be renamed and issues can
/// be moved.
const CACHE_LIFETIME: Duration = Duration::from_secs(600);
/// Limit on the cached results of a lease. A full cache drops its expired results. If none has
/// expired, it drops all results.
const CACHE_CAPACITY: usize = 4096;
/// The longest node id in bytes that is looked up; a longer one counts as unknown.
const MAX_ID: usize = 256;

/// The query for nodes. A node of a type that is not listed here counts as unknown.
const NODES: &str = "query($ids:[ID!]!){nodes(ids:$ids){\
    ...on Actor{login}\
    ...on Repository{nameWithOwner}\
    ...on RepositoryNode{repository{nameWithOwner}}\
    ...on GitObject{repository{nameWithOwner}}\
    ...on Label{name repository{nameWithOwner}}\
    ...on Milestone{repository{nameWithOwner}}\
    ...on PullRequestReviewThread{repository{nameWithOwner}}\
    ...on Ref{repository{nameWithOwner}}\
    ...on Release{repository{nameWithOwner}}}}";

/// The container that a look-up is made for, and the forge's endpoint.
#[derive(Clone, Debug)]
pub(super) struct Requester {
    /// The lease whose request needs the look-up.
    pub container: Arc<Container>,
    /// The host of the forge's API.
    pub api: Host,
    /// The port of the container's request.
    pub port: u16,
    /// The path prefix of the API on this host: empty, or `/api`.
    pub prefix: &'static str,
}

/// The object of a node id: a repository, an object in a repository, or an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The `owner/name` of the repository; `None` for an account.
    pub repo: Option<String>,
    /// The name of the label; `None` unless the node is a label.
    pub label: Option<String>,
    /// The login; `None` unless the node is an account.
    pub login: Option<String>,
}

/// Client of a forge's API. Looks up repositories and nodes with the container's credential, within
/// the container's policy and budgets. Caches results in the lease. A look-up returns `None` if
/// policy denies it, or if the forge does not return the object. The caller must then deny the
/// container's request. A look-up returns an error if the forge responds with 5xx, or if the
/// look-up fails in the proxy, for example at the container's rate limit.
pub struct Forge {
    outbound: Arc<dyn Outbound>,
}

impl Forge {
    /// Creates a client that sends its requests through `outbound`.
    #[must_use]
    pub fn new(outbound: Arc<dyn Outbound>) -> Self {
        Self { outbound }
    }

    /// The `owner/name` of the repository with this number. `None` for an unknown number, and for a
    /// private repository that is not registered for the container: the container must not learn
    /// which repositories the proxy's credential can read.
    pub(super) async fn repo_of_id(
        &self,
        requester: Requester,
        id: u64,
    ) -> Result<Option<String>, Denial> {
        let cache = requester.container.state_or_init(LookupCache::default);
        let key = (url(&requester, ""), ObjectId::Number(id));
        if let Some(node) = cache.get(&key) {
            return Ok(node.repo);
        }
        let repo = self.look_up_repo(&requester, id).await?;
        if repo.is_some() {
            let node = Node {
                repo: repo.clone(),
                label: None,
                login: None,
            };
            cache.insert(key, node);
        }
        Ok(repo)
    }

    /// The nodes with these ids, in the order of the ids; `None` for an unknown id. A call may have
    /// at most 100 ids.
    pub(super) async fn nodes(
        &self,
        requester: &Requester,
        ids: &[String],
    ) -> Result<Vec<Option<Node>>, Denial> {
        let cache = requester.container.state_or_init(LookupCache::default);
        let key = |id: &String| (url(requester, ""), ObjectId::Node(id.clone()));
        let mut nodes: Vec<Option<Node>> = ids.iter().map(|id| cache.get(&key(id))).collect();
        let mut unknown: Vec<(&String, &mut Option<Node>)> = ids
            .iter()
            .zip(&mut nodes)
            .filter(|(id, node)| node.is_none() && id.len() <= MAX_ID)
            .collect();
        let asked: Vec<&String> = unknown.iter().map(|(id, _)| *id).collect();
        if asked.is_empty() {
            return Ok(nodes);
        }
        let results = self.look_up_nodes(requester, &asked).await?;
        for ((id, node), result) in unknown.iter_mut().zip(results) {
            if let Some(result) = &result {
                cache.insert(key(id), result.clone());
            }
            **node = result;
        }
        Ok(nodes)
    }

    /// Sends a request and returns the forge's JSON. Returns a denial if the status is 5xx, or if
    /// the look-up fails in the proxy, for example at the container's rate limit. Returns `None` if
    /// policy denies the request, if the status is any other than 200, or if the response is not
    /// JSON.
    async fn send(
        &self,
        requester: &Requester,
        request: http::Result<Request<Bytes>>,
    ) -> Result<Option<Value>, Denial> {
        let request = request.map_err(Denial::malformed)?;
        let response = match self.outbound.look_up(&requester.container, request).await {
            Ok(response) => response,
            Err(OutboundError::Denied(denial)) if is_policy(&denial) => return Ok(None),
            Err(OutboundError::Denied(denial)) => return Err(denial),
            Err(OutboundError::Starting | OutboundError::NoUrl) => return Err(Denial::internal()),
        };
        if response.status().is_server_error() {
            let sentence = format!("{} failed to look up an id of the request", requester.api);
            return Err(Denial::new(Code::UpstreamUnreachable, sentence));
        }
        if response.status() != StatusCode::OK {
            return Ok(None);
        }
        Ok(serde_json::from_slice(response.body()).ok())
    }

    async fn look_up_repo(&self, requester: &Requester, id: u64) -> Result<Option<String>, Denial> {
        let version = if requester.prefix.is_empty() {
            ""
        } else {
            "/v3"
        };
        let request = Request::get(url(requester, &format!("{version}/repositories/{id}")))
            .header(USER_AGENT, "unified-proxy")
            .header(ACCEPT, "application/vnd.github+json")
            .body(Bytes::new());
        let response = self.send(requester, request).await?.unwrap_or_default();
        let name = response.get("full_name").and_then(Value::as_str);
        let is_public = response.get("private") == Some(&Value::Bool(false));
        let is_listed =
            |name: &str| permit_repo(&name.to_ascii_lowercase(), &requester.container).is_ok();
        let known = name.filter(|name| is_public || is_listed(name));
        Ok(known.map(str::to_owned))
    }

    async fn look_up_nodes(
        &self,
        requester: &Requester,
        ids: &[&String],
    ) -> Result<Vec<Option<Node>>, Denial> {
        let body = json!({ "query": NODES, "variables": { "ids": ids } });
        let request = Request::post(url(requester, "/graphql"))
            .header(USER_AGENT, "unified-proxy")
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string().into());
        let response = self.send(requester, request).await?.unwrap_or_default();
        let nodes = response.pointer("/data/nodes").and_then(Value::as_array);
        // Nodes are matched with ids by position, so a list of another length is discarded.
        let nodes = nodes.filter(|nodes| nodes.len() == ids.len());
        Ok(nodes.map_or_else(Vec::new, |nodes| nodes.iter().map(node).collect()))
    }
}

/// Whether policy denies the request. A denial with a retry time, such as a rate limit, does not
/// count: a later look-up may pass.
fn is_policy(denial: &Denial) -> bool {
    denial.code().fault() == Fault::Policy && denial.retry_after_seconds().is_none()
}

fn url(requester: &Requester, path: &str) -> String {
    let Requester {
        api, port, prefix, ..
    } = requester;
    match port {
        443 => format!("https://{api}{prefix}{path}"),
        _ => format!("https://{api}:{port}{prefix}{path}"),
    }
}

fn node(value: &Value) -> Option<Node> {
    let text = |pointer| {
        let text = value.pointer(pointer).and_then(Value::as_str);
        text.map(str::to_owned)
    };
    let node = Node {
        repo: text("/repository/nameWithOwner").or_else(|| text("/nameWithOwner")),
        label: text("/name"),
        login: text("/login"),
    };
    (node.repo.is_some() || node.login.is_some()).then_some(node)
}

/// The lease's cache of results.
#[derive(Default)]
struct LookupCache(Mutex<HashMap<Key, (Instant, Node)>>);

/// The URL of the API, and the id.
type Key = (String, ObjectId);

#[derive(PartialEq, Eq, Hash)]
enum ObjectId {
    Number(u64),
    Node(String),
}

impl LookupCache {
    fn get(&self, key: &Key) -> Option<Node> {
        let entries = self.0.lock();
        let (at, node) = entries.get(key)?;
        (at.elapsed() < CACHE_LIFETIME).then(|| node.clone())
    }

    fn insert(&self, key: Key, node: Node) {
        let mut entries = self.0.lock();
        if entries.len() >= CACHE_CAPACITY {
            entries.retain(|_, (at, _)| at.elapsed() < CACHE_LIFETIME);
        }
        if entries.len() >= CACHE_CAPACITY {
            entries.clear();
        }
        entries.insert(key, (Instant::now(), node));
    }
}
