//! Responses that echo a secret: the secret is redacted, and chunk boundaries do not change the
//! output.
#![no_main]

use std::sync::Arc;

use addons::contract::{
    Addon, AuthMode, BodyOut, Client, Container, ContainerId, Endpoint, FlowStart, Host, Kind,
    LeaseId, OwnedFlow, Path, Registration, Request, Response, Scheme, SecretSource, Source,
    Standing, Subject,
};
use addons::credentials::{Credential, CredentialKind, Credentials};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use libfuzzer_sys::fuzz_target;
use time::macros::datetime;
use zeroize::Zeroizing;

const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";

struct FixedSecret;

impl SecretSource for FixedSecret {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        Ok(Arc::new(Zeroizing::new(SECRET.to_owned())))
    }

    fn version(&self) -> u64 {
        0
    }
}

/// The response body that a container gets, filtered in chunks of `size` bytes; `None` if the addon
/// denies the exchange.
fn scrubbed(body: &[u8], size: usize) -> Option<Vec<u8>> {
    let host = Host::parse("api.example.com").ok()?;
    let addon = Credentials::new(vec![Credential {
        name: "vendor".into(),
        hosts: vec![(host.clone(), 443)],
        kind: CredentialKind::Bearer(Arc::new(FixedSecret)),
        remove_headers: Vec::new(),
        remove_query: Vec::new(),
        remove_cookies: Vec::new(),
        containers: None,
        repos: None,
    }]);
    let mut flow = flow(host)?;
    let path = Path::parse("/");
    let mut request = Request::new(Method::GET, path, None, HeaderMap::new());
    addon.request(&mut flow, &mut request).ready()?.ok()?;
    let mut response = Response::new(StatusCode::OK, HeaderMap::new());
    addon.response(&mut flow, &mut response).ready()?.ok()?;
    let mut passed = body.to_vec();
    for mut filter in response.take_filters() {
        let mut out = BodyOut::default();
        for chunk in passed.chunks(size) {
            filter.chunk(Bytes::copy_from_slice(chunk), &mut out).ok()?;
        }
        filter.end(&mut out, None).ok()?;
        passed = out.drain().flatten().collect();
    }
    Some(passed)
}

fn flow(host: Host) -> Option<OwnedFlow> {
    let id = ContainerId::parse("web")?;
    let source = Source::Listener(id.clone());
    let container = Container::new(Registration {
        id,
        lease: LeaseId::generate(),
        source: source.clone(),
        repos: Vec::new(),
        auth_mode: AuthMode::User,
        created_at: datetime!(2030-01-01 00:00 UTC),
        expires_at: datetime!(9999-01-01 00:00 UTC),
        allowed_domains: None,
        standing: Standing::default(),
    });
    let client = Client {
        source: Some(source),
        peer: None,
    };
    let subject = Subject::Upstream(Endpoint {
        scheme: Scheme::Https,
        host,
        port: 443,
    });
    let mut start = FlowStart::new(Kind::Http, client, subject, None);
    start.principal = Some(Arc::new(container).into());
    Some(start.begin())
}

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (size, before, after) = input;
    let body = [before, SECRET.as_bytes(), after].concat();
    let whole = scrubbed(&body, body.len()).expect("the exchange passes");
    let holds = whole.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
    assert!(!holds, "the secret is not redacted");
    assert_eq!(scrubbed(&body, usize::from(size).max(1)), Some(whole));
});
