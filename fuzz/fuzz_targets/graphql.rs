//! GraphQL bodies of at most 1 MiB: judging one does not panic, overflow the stack or take 5 s.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use addons::contract::*;
use addons::forges::ForgeHosts;
use addons::github::{Forge, Github, GithubSettings, Mentions, Mutations, Patterns};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

/// Stands in for the addon `policy`, which every chain must have. Passes every flow.
struct PolicyStub(&'static str);

impl Addon for PolicyStub {
    fn name(&self) -> &'static str {
        self.0
    }
}

/// A forge that knows no repository and no node.
struct EmptyForge;

impl Outbound for EmptyForge {
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
        let query: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let ids = query["variables"]["ids"].as_array();
        let nodes = vec![Value::Null; ids.map_or(0, Vec::len)];
        let body = json!({ "data": { "nodes": nodes } }).to_string();
        let mut response = http::Response::new(body.into());
        if ids.is_none() {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        Box::pin(std::future::ready(Ok(response)))
    }
}

/// Keeps the principal with which a flow began.
struct KeepPrincipal;

impl Identify for KeepPrincipal {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn identify(&self, _flow: &Flow, _request: Option<&mut Request>) -> Identified {
        Identified {
            principal: None,
            verdict: Ok(()),
        }
    }
}

fn host(name: &str) -> Host {
    Host::parse(name).unwrap()
}

fn chain() -> Chain {
    let settings = GithubSettings {
        hosts: vec![ForgeHosts {
            host: host("github.com"),
            api: Some(host("api.github.com")),
            uploads: None,
            raw: None,
            codeload: None,
        }],
        blocked: Patterns::default(),
        allowed: Patterns::default(),
        writes_are_an_allowlist: true,
        public_reads: false,
        mutations: Mutations::new(&[], &[], true),
        mentions: Mentions::new(&["@copilot".to_owned()]),
    };
    let links = vec![
        Link::Identity(Arc::new(KeepPrincipal)),
        Arc::new(PolicyStub("policy")).into(),
        Arc::new(Github::new(
            settings,
            Arc::new(Forge::new(Arc::new(EmptyForge))),
        ))
        .into(),
    ];
    Chain::new(links, std::time::Duration::from_secs(10)).unwrap()
}

fn container() -> Container {
    let now = OffsetDateTime::now_utc();
    Container::new(Registration {
        id: ContainerId::parse("fuzz").unwrap(),
        lease: LeaseId::generate(),
        source: Source::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        repos: vec![Repo {
            name: "acme/web".into(),
            max_receive_pack_bytes: None,
        }],
        auth_mode: AuthMode::User,
        created_at: now,
        expires_at: now + Duration::hours(1),
        allowed_domains: None,
        standing: Standing::default(),
    })
}

async fn judge(body: Vec<u8>) -> Result<Bytes, Denial> {
    let host = host("api.github.com");
    let subject = Subject::Upstream(Endpoint {
        scheme: Scheme::Https,
        host,
        port: 443,
    });
    let mut start = FlowStart::new(Kind::Http, Client::default(), subject, None);
    start.principal = Some(Arc::new(container()).into());
    let mut flow = start.begin();
    let path = Path::parse("/graphql");
    let mut request = Request::new(Method::POST, path, None, HeaderMap::new());
    let chain = chain();
    chain.request(&mut flow, &mut request).await?;
    let judges = request.take_judges().unwrap();
    let body = Buffered::unlimited(body.into());
    chain.judge(&mut flow, &mut request, judges, body).await
}

fuzz_target!(|text: &str| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let wrapped = json!({ "query": text }).to_string();
    for body in [text.to_owned(), wrapped] {
        if body.len() > 1 << 20 {
            continue;
        }
        let begun = std::time::Instant::now();
        let verdict = runtime.block_on(judge(body.into_bytes()));
        let internal = verdict
            .err()
            .filter(|denial| denial.code() == Code::InternalError);
        assert!(internal.is_none(), "{internal:?}");
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    }
});
