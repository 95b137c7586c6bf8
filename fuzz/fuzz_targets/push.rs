//! Pushes: judging a body does not panic, chunk boundaries do not change the verdict, and a push
//! that passes is unchanged.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use addons::contract::{
    Addon, AuthMode, Client, Code, Container, ContainerId, Endpoint, FlowStart, Host, HostSet,
    Kind, LeaseId, Standing, Path, Registration, Repo, Request, Scheme, Source, Subject,
};
use addons::git::{Git, GitMetrics, GitSettings};
use fixtures::send_body;
use http::{HeaderMap, Method};
use libfuzzer_sys::fuzz_target;
use time::{Duration, OffsetDateTime};

#[path = "../../addons/tests/fixtures/mod.rs"]
mod fixtures;

fn pushed(pieces: &[&[u8]]) -> (Vec<u8>, Option<Code>) {
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
    let path = Path::parse("/acme/web/git-receive-pack");
    let mut request = Request::new(Method::POST, path, None, HeaderMap::new());
    git.request(&mut flow, &mut request)
        .ready()
        .unwrap()
        .unwrap();
    let (passed, verdict) = send_body(&mut flow, &mut request, pieces);
    (passed, verdict.err().map(|denial| denial.code()))
}

fuzz_target!(|body: &[u8]| {
    let (whole, expected) = pushed(&[body]);
    let bytes: Vec<_> = body.chunks(1).collect();
    let (passed, code) = pushed(&bytes);
    assert_eq!(code, expected);
    assert!(body.starts_with(&passed) && passed.starts_with(&whole));
    assert!(code.is_some() || passed == body);
});
