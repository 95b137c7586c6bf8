//! The GitHub addon in a chain: identity and policy before it, bodies buffered for its judges.

mod graphql;
mod hostile;
mod inputs;
mod rest;
mod writes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::fixtures::{
    Nowhere, OneContainer, container, flow, processor_time, read_files, registration, request,
};
use addons::contract::settings::PathPattern;
use addons::contract::*;
use addons::github::{
    Forge, Github, GithubSettings, Mentions, Mutations, Node, Patterns, Requester,
};
use addons::identity::Identity;
use addons::policy::{Policy, PolicySettings};
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// A forge with the repositories 7 (the container's) and 8, and with nodes by the first letter of
/// their ids: `W…` belong to the container's repository, `X…` to another one, `L…` to a second one
/// of the same owner; `U…` and `B…` are a person and an agent.
struct Known;

impl Forge for Known {
    fn repo_of_id<'a>(
        &'a self,
        _asker: Requester,
        id: u64,
    ) -> BoxFuture<'a, Result<Option<String>, Denial>> {
        let repo = match id {
            7 => Some("Acme/Web".to_owned()),
            8 => Some("acme/secret".to_owned()),
            _ => None,
        };
        Box::pin(std::future::ready(Ok(repo)))
    }

    fn nodes<'a>(
        &'a self,
        _asker: Requester,
        ids: Vec<String>,
    ) -> BoxFuture<'a, Result<Vec<Option<Node>>, Denial>> {
        let node = |id: &String| {
            let (repo, login) = match id.chars().next()? {
                'W' => (Some("acme/web"), None),
                'X' => (Some("acme/secret"), None),
                'L' => (Some("acme/lib"), None),
                'U' => (None, Some("somebody")),
                'B' => (None, Some("copilot-swe-agent")),
                _ => return None,
            };
            Some(Node {
                repo: repo.map(str::to_owned),
                label: id.ends_with("automerge").then(|| "Auto Merge".to_owned()),
                login: login.map(str::to_owned),
            })
        };
        Box::pin(std::future::ready(Ok(ids.iter().map(node).collect())))
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
            guarded_hosts: ["api.github.com", "ghe.example.com"]
                .map(host)
                .into_iter()
                .collect(),
            rules: Vec::new(),
        };
        let links = vec![
            Link::Identity(Arc::new(Identity::new(OneContainer::new(container)))),
            Arc::new(Policy::new(policy, Arc::new(Nowhere))).into(),
            Arc::new(Github::new(settings, Arc::new(Known))).into(),
        ];
        Self {
            chain: Chain::new(links, Duration::from_secs(10)).unwrap(),
            runtime: Builder::new_current_thread().enable_time().build().unwrap(),
        }
    }

    /// Sends a request through the chain: its head as it would be sent, or a denial.
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
                let given = Buffered::own(Bytes::copy_from_slice(body));
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
