//! LFS batch calls: judging one does not panic or take 5 s, and judging the body that is sent
//! upstream returns this body unchanged.
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

/// The body that is sent upstream for a batch call, or the code of the denial.
fn asked(batch: &[u8]) -> Result<Vec<u8>, Code> {
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
    let path = Path::parse("/acme/web/info/lfs/objects/batch");
    let mut request = Request::new(Method::POST, path, None, HeaderMap::new());
    git.request(&mut flow, &mut request)
        .ready()
        .unwrap()
        .unwrap();
    let (sent, verdict) = send_body(&mut flow, &mut request, &[batch]);
    verdict.map(|()| sent).map_err(|denial| denial.code())
}

fuzz_target!(|batch: &[u8]| {
    let begun = std::time::Instant::now();
    match asked(batch) {
        Ok(sent) => {
            assert!(sent.len() <= batch.len() + 1024, "the sent body is too long");
            assert_eq!(
                asked(&sent).as_ref(),
                Ok(&sent),
                "the sent body is judged differently"
            );
            let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
            let sizes = sent["objects"].as_array().into_iter().flatten();
            let too_large = |object: &serde_json::Value| object["size"].as_u64() > Some(1024);
            assert!(sent["operation"] == "download" || !{ sizes }.any(too_large));
        }
        Err(code) => assert_ne!(code, Code::InternalError),
    }
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
});
