//! The GitHub addon in a chain: identity and policy before it, bodies buffered for its judges.

mod graphql;
mod hostile;
mod inputs;
mod rest;
mod writes;

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use crate::fixtures::{
    Nowhere, OneContainer, container, flow, processor_time, read_files, registration, request,
};
use addons::contract::settings::PathPattern;
use addons::contract::*;
use addons::github::{Forge, Github, GithubSettings, Mentions, Mutations, Patterns};
use addons::identity::Identity;
use addons::policy::{Policy, PolicySettings};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// The URLs of the forges' APIs, each with the number of the container's repository and of another.
const APIS: [(&str, &str, &str); 3] = [
    ("https://api.github.com/", "7", "8"),
    ("https://ghe.example.com/api/v3/", "7", "8"),
    ("https://api.git.example.com/", "27", "28"),
];

/// Forges that answer look-ups of repositories at the URLs of [`APIS`] and nowhere else. The first
/// letter of a node's id says what the node is: `W…` belongs to the container's repository
/// `acme/web`, `X…` to `acme/secret` and `L…` to `acme/lib`; `U…` is a person, `B…` an agent.
struct Known;

impl Known {
    fn answer(request: &http::Request<Bytes>) -> Value {
        let url = request.uri().to_string();
        if let Some((api, id)) = url.rsplit_once("repositories/") {
            let found = APIS.into_iter().find(|(url, ..)| *url == api);
            return match found {
                Some((_, own, _)) if own == id => json!({ "full_name": "Acme/Web" }),
                Some((.., other)) if other == id => {
                    json!({ "full_name": "acme/secret", "private": true })
                }
                Some(_) if id == "10" => json!({ "full_name": "other/lib", "private": false }),
                _ => Value::Null,
            };
        }
        let asked: Value = serde_json::from_slice(request.body()).unwrap();
        let ids = asked["variables"]["ids"].as_array().unwrap().iter();
        let nodes = ids.map(|id| Self::node(id.as_str().unwrap()));
        json!({ "data": { "nodes": nodes.collect::<Vec<_>>() } })
    }

    fn node(id: &str) -> Value {
        let repo = match id.chars().next() {
            Some('W') => "acme/web",
            Some('X') => "acme/secret",
            Some('L') => "acme/lib",
            Some('U') => return json!({ "login": "somebody" }),
            Some('B') => return json!({ "login": "copilot-swe-agent" }),
            _ => return Value::Null,
        };
        let label = id.ends_with("automerge").then_some("Auto Merge");
        json!({ "name": label, "repository": { "nameWithOwner": repo } })
    }
}

impl Outbound for Known {
    fn send<'a>(
        &'a self,
        _: &'a Arc<System>,
        _: http::Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>> {
        unreachable!("the addon sends every look-up on behalf of the container")
    }

    fn look_up<'a>(
        &'a self,
        _: &'a Arc<Container>,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>> {
        let answer = Self::answer(&request).to_string();
        Box::pin(ready(Ok(http::Response::new(answer.into()))))
    }
}

fn host(name: &str) -> Host {
    Host::parse(name).unwrap()
}

fn patterns(patterns: &[(&str, &str)]) -> Patterns {
    let mut compiled: HashMap<Method, Vec<PathPattern>> = HashMap::new();
    for (method, pattern) in patterns {
        let of_method = compiled.entry(method.parse().unwrap()).or_default();
        of_method.push(PathPattern::parse_ignoring_case(pattern).unwrap());
    }
    compiled.into_iter().collect()
}

/// The shipped settings, with a GitHub Enterprise server in addition.
fn settings() -> GithubSettings {
    let policy = "version: 1\ngit: { hosts: [github.com, ghe.example.com] }\n";
    read_files(&[("policy.yaml", policy)], GithubSettings::read).unwrap()
}

struct Guard {
    chain: Chain,
    runtime: Runtime,
}

impl Guard {
    fn new(settings: GithubSettings) -> Self {
        Self::of(container("web"), settings)
    }

    /// The chain with one container registered.
    fn of(container: Arc<Container>, settings: GithubSettings) -> Self {
        let policy = PolicySettings {
            allow_private: Vec::new(),
            host_ports: Vec::new(),
            guarded_hosts: ["api.github.com", "ghe.example.com"]
                .map(host)
                .into_iter()
                .collect(),
            rules: Vec::new(),
            asks_about_hosts: false,
            hold: Duration::ZERO,
        };
        let links = vec![
            Link::Identity(Arc::new(Identity::new(OneContainer::new(container)))),
            Arc::new(Policy::new(policy, Arc::new(Nowhere))).into(),
            Arc::new(Github::new(settings, Arc::new(Forge::new(Arc::new(Known))))).into(),
        ];
        Self {
            chain: Chain::new(links, Duration::from_secs(10)).unwrap(),
            runtime: Builder::new_current_thread().enable_time().build().unwrap(),
        }
    }

    /// Judges a request in the chain. Returns its head as it would be sent upstream, or the denial.
    fn send(&self, host: &str, line: &str, body: &[u8]) -> Result<Request, Denial> {
        let (method, target) = line.split_once(' ').unwrap();
        let mut flow = flow(Kind::Http, host);
        let fields = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("authorization", "token brought"),
        ];
        let mut request = request(target, &fields);
        request.method = method.parse().unwrap();
        let judging = async {
            self.chain.request(&mut flow, &mut request).await?;
            if let Some(judges) = request.take_judges() {
                if body.len() > judges.limit() {
                    return Err(Denial::new(Code::BodyTooLargeToInspect, "too large"));
                }
                let given = Buffered::unlimited(Bytes::copy_from_slice(body));
                let judging = self.chain.judge(&mut flow, &mut request, judges, given);
                assert_eq!(judging.await?, body);
            }
            Ok(())
        };
        self.runtime.block_on(judging)?;
        Ok(request)
    }

    fn code(&self, host: &str, line: &str, body: &Value) -> Option<Code> {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let sent = self.send(host, line, body.as_bytes());
        sent.err().map(|denial| denial.code())
    }
}
