//! The addon of docs/writing-an-addon.md: the code in the document is compiled and tested.

#[path = "example/freeze.rs"]
mod example;

use std::sync::Arc;
use std::time::Duration;

use crate::fixtures::{OneContainer, container, read_files, request, start};
use addons::contract::{Addon, Chain, Code, Kind, Link, OwnedFlow, names};
use addons::identity::Identity;
use example::{Freeze, FreezeSettings, Freezes};
use futures_util::FutureExt;
use http::Method;
use prometheus::{IntCounter, Registry};

struct Frozen(&'static str);

impl Freezes for Frozen {
    fn is_frozen(&self, upstream: &str) -> bool {
        upstream == self.0
    }
}

/// Stands in for an addon that every chain must have.
struct Named(&'static str);

impl Addon for Named {
    fn name(&self) -> &'static str {
        self.0
    }
}

fn settings(policy: &str) -> Result<FreezeSettings, String> {
    read_files(&[("policy.yaml", policy)], FreezeSettings::read)
}

/// A chain in which `api.example.com` is frozen.
fn chain(policy: &str, denied: IntCounter) -> Chain {
    let freezes = Arc::new(Frozen("api.example.com"));
    let freeze = Freeze::new(settings(policy).unwrap(), freezes, denied);
    let identity = Identity::new(OneContainer::new(container("web")));
    let links = vec![
        Link::Identity(Arc::new(identity)),
        Arc::new(Named(names::POLICY)).into(),
        Arc::new(freeze).into(),
    ];
    Chain::new(links, Duration::from_secs(1)).unwrap()
}

fn flow(host: &str) -> OwnedFlow {
    start(Kind::Http, host).begin()
}

fn ask(chain: &Chain, mut flow: OwnedFlow, method: Method) -> Option<Code> {
    let mut request = request("/", &[]);
    request.method = method;
    let verdict = chain.request(&mut flow, &mut request).now_or_never();
    verdict.unwrap().err().map(|denial| denial.code())
}

#[test]
fn a_write_to_a_frozen_upstream_is_denied_and_counted() {
    let denied = Freeze::counter(&Registry::new()).unwrap();
    let chain = chain("version: 1\n", denied.clone());
    let frozen = || flow("api.example.com");
    let no = Some(Code::WriteNotAllowed);
    assert_eq!(ask(&chain, frozen(), Method::POST), no);
    assert_eq!(ask(&chain, frozen(), Method::GET), None);
    assert_eq!(ask(&chain, flow("other.example.com"), Method::POST), None);
    let dry_run = start(Kind::Http, "api.example.com").begin_dry();
    assert_eq!(ask(&chain, dry_run, Method::POST), no);
    assert_eq!(denied.get(), 1);
}

#[test]
fn the_settings_choose_the_denied_methods() {
    let policy = "version: 1\nfreeze: { methods: [DELETE] }\n";
    let chain = chain(policy, Freeze::counter(&Registry::new()).unwrap());
    let frozen = || flow("api.example.com");
    assert_eq!(ask(&chain, frozen(), Method::POST), None);
    let no = Some(Code::WriteNotAllowed);
    assert_eq!(ask(&chain, frozen(), Method::DELETE), no);
}

#[test]
fn wrong_settings_are_refused_with_their_place() {
    let wrong = "version: 1\nfreeze:\n  methods: [DELETE, push]\n  method: POST\n";
    assert_eq!(
        settings(wrong).err().unwrap().lines().collect::<Vec<_>>(),
        [
            "policy.yaml:3:21: freeze.methods[1]: must be one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
            "policy.yaml:4:3: freeze.method: unknown key; did you mean methods?",
        ]
    );
}

#[test]
fn the_document_shows_the_addon_that_is_tested() {
    let document = include_str!("../../../docs/writing-an-addon.md");
    let code = include_str!("example/freeze.rs");
    assert!(document.contains(&format!("```rust\n{code}```")));
    assert!(code.lines().count() < 100);
}
