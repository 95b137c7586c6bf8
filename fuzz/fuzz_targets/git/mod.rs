//! A container's requests to a git host, judged by the addon `git`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use addons::contract::{
    Addon, AuthMode, Client, Code, Container, ContainerId, Endpoint, FlowStart, Host, HostSet,
    Kind, LeaseId, Path, Registration, Repo, Request, Scheme, Source, Standing, Subject,
};
use addons::git::{Git, GitMetrics, GitSettings};
use fixtures::send_body;
use http::{HeaderMap, Method};
use time::{Duration, OffsetDateTime};

#[path = "../../../addons/tests/fixtures/mod.rs"]
mod fixtures;

/// Judges a POST to `path` of a git host. The body arrives in pieces. Returns the body that is sent
/// upstream, and the code of the denial if there is one.
pub fn post(path: &str, pieces: &[&[u8]]) -> (Vec<u8>, Option<Code>) {
    let host = Host::parse("github.com").unwrap();
    let settings = GitSettings {
        hosts: HostSet::from_iter([host.clone()]),
        bot_branch_prefixes: ["refs/heads/sandbox/".to_owned()].into(),
        allow_branch_deletion: false,
        public_reads: false,
        report_push_denials: true,
        warning_bytes: 512,
        hard_limit_bytes: 1024,
    };
    let reachable = |_: &Container, host: &Host, _| host.name() != Some("evil.example.com");
    let metrics = GitMetrics::new(&prometheus::Registry::new()).unwrap();
    let git = Git::new(settings, Arc::new(reachable), Arc::new(metrics));
    let now = OffsetDateTime::now_utc();
    let container = Container::new(Registration {
        id: ContainerId::parse("fuzz").unwrap(),
        lease: LeaseId::generate(),
        source: Source::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        repos: vec![Repo {
            name: "acme/web".into(),
            max_receive_pack_bytes: None,
        }],
        auth_mode: AuthMode::Bot,
        created_at: now,
        expires_at: now + Duration::hours(1),
        allowed_domains: None,
        standing: Standing::default(),
    });
    let subject = Subject::Upstream(Endpoint {
        scheme: Scheme::Https,
        host,
        port: 443,
    });
    let mut start = FlowStart::new(Kind::Http, Client::default(), subject, None);
    start.principal = Some(Arc::new(container).into());
    let mut flow = start.begin();
    let path = Path::parse(path);
    let mut request = Request::new(Method::POST, path, None, HeaderMap::new());
    git.request(&mut flow, &mut request)
        .ready()
        .unwrap()
        .unwrap();
    let (passed, verdict) = send_body(&mut flow, &mut request, pieces);
    (passed, verdict.err().map(|denial| denial.code()))
}
