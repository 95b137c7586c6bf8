//! Requests: injected secrets, removed keys, refused placeholders.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use testkit::each_row;

use super::*;
use crate::contract::{Container, Scheme};
use crate::credentials::inject::fetch;

const PLACEHOLDER: &str = "up-placeholder-0123456789abcdef0123456789abcdef";

/// The fields of a request after injection.
fn sent(credential: Credential, flow: &mut Flow, request: &mut Request) -> Result<HeaderMap, Code> {
    let addon = Credentials::new(vec![credential]);
    let passed = verdict(addon.request(flow, request));
    passed.map_err(|denial| denial.code())?;
    Ok(request.headers.clone())
}

fn sends_key(credential: Credential, flow: &mut Flow, path: &str) -> bool {
    let headers = sent(credential, flow, &mut request(path, &[])).unwrap();
    headers.get("x-key").is_some_and(|value| value == SECRET)
}

#[test]
fn a_secret_is_added_in_the_form_of_the_credentials_kind() {
    let encoded = STANDARD.encode(format!("x-access-token:{SECRET}"));
    let bearer = CredentialKind::Bearer(source(SECRET));
    for (credential, field, value) in [
        (key("k", SECRET), "x-key", SECRET.to_owned()),
        (key("k", &format!("{SECRET}\n")), "x-key", SECRET.to_owned()),
        (basic(SECRET), "authorization", format!("Basic {encoded}")),
        (
            credential("b", "api.example.com", bearer),
            "authorization",
            format!("Bearer {SECRET}"),
        ),
    ] {
        let mut flow = flow();
        let name = Arc::clone(&credential.name);
        let headers = sent(credential, &mut flow, &mut request("/", &[])).unwrap();
        let added = headers.get(field).unwrap();
        assert_eq!(added.to_str().unwrap(), value);
        assert!(added.is_sensitive());
        assert!(!format!("{headers:?}").contains(&value));
        assert_eq!(flow.record().credential, Some(name));
        assert_eq!(headers.get("accept-encoding").unwrap(), "identity");
    }
}

#[test]
fn a_websocket_whose_messages_are_scrubbed_offers_no_extension() {
    let elsewhere = || flow_of(&container("web"), Kind::Http, "other.example.com");
    for (mut flow, offers) in [(flow(), false), (elsewhere(), true)] {
        for name in ["sec-websocket-extensions", "sec_websocket_extensions"] {
            let mut request = request("/", &[(name, "permessage-deflate")]);
            let headers = sent(key("k", SECRET), &mut flow, &mut request).unwrap();
            assert_eq!(
                headers.contains_key(name),
                offers,
                "{name} to {}",
                flow.host()
            );
        }
    }
}

#[test]
fn a_secret_is_sent_only_to_its_host_and_port_over_tls() {
    assert!(sends_key(key("k", SECRET), &mut flow(), "/"));
    let mut clear = flow();
    clear.endpoint_mut().scheme = Scheme::Http;
    assert!(!sends_key(key("k", SECRET), &mut clear, "/"));
    let mut port = flow();
    port.endpoint_mut().port = 8443;
    assert!(!sends_key(key("k", SECRET), &mut port, "/"));
    each_row(
        ["example.com", "x.api.example.com", "api.example.org"],
        |host| {
            let mut other = flow_of(&container("web"), Kind::Http, host);
            assert!(!sends_key(key("k", SECRET), &mut other, "/"), "{host}");
        },
    );
}

#[test]
fn an_entry_may_be_limited_to_containers() {
    let only = |id| Credential {
        containers: Some(vec![ContainerId::parse(id).unwrap()]),
        ..key("k", SECRET)
    };
    assert!(sends_key(only("web"), &mut flow(), "/"));
    assert!(!sends_key(only("db"), &mut flow(), "/"));
}

#[test]
fn an_entry_may_be_limited_to_repositories() {
    let only = |repo: &str| Credential {
        repos: Some(vec![repo.to_owned()]),
        ..key("k", SECRET)
    };
    // The container's registration lists acme/web.
    each_row(
        [
            ("acme/web", "/acme/web", true),
            ("acme/web", "/Acme/Web.git/info/refs", true),
            ("acme/web", "/repos/acme/web/pulls", true),
            ("acme/web", "/acme/website", false),
            ("acme/web", "/acme/other", false),
            ("acme/web", "/user", false),
            ("acme/web", "/acme/web/../../evil/x", false),
            ("acme/other", "/acme/other", false),
        ],
        |(repo, path, sends)| {
            assert_eq!(
                sends_key(only(repo), &mut flow(), path),
                sends,
                "{repo} {path}"
            );
        },
    );
}

#[test]
fn a_clients_own_key_is_removed_in_every_spelling() {
    each_row([Scheme::Https, Scheme::Http], |scheme| {
        let mut flow = flow();
        flow.endpoint_mut().scheme = scheme;
        let brought = [
            ("X-Key", "mine"),
            ("x_key", "mine"),
            ("authorization", "Bearer mine"),
            ("proxy_authorization", "mine"),
            ("x-api-key", "mine"),
            ("X_Api_Key", "mine"),
            ("X-Api-Key", "mine"),
            ("private-token", "mine"),
            ("x-custom", "mine"),
            ("x_custom", "mine"),
            ("cookie", "session=mine; theme=dark; SESSION=mine"),
            ("cookie", "session=mine"),
            ("cookie", "%73ession=mine; lang=en"),
            ("accept", "*/*"),
        ];
        let target = "/?a=1&key=mine&%6bey=mine&KEY=mine;key=mine&b=2&key";
        let mut request = request(target, &brought);
        let credential = Credential {
            remove_headers: vec![HeaderName::from_static("x_custom")],
            remove_query: vec!["key".to_owned()],
            remove_cookies: vec!["session".to_owned()],
            ..key("k", SECRET)
        };
        let left = sent(credential, &mut flow, &mut request).unwrap();
        let mine = left
            .values()
            .filter(|value| value.to_str().unwrap().contains("mine"));
        assert_eq!(mine.count(), 0, "{left:?}");
        let cookies: Vec<_> = left.get_all("cookie").iter().collect();
        assert_eq!(cookies, ["theme=dark", "lang=en"]);
        assert_eq!(request.query.as_deref(), Some("a=1&b=2"));
        assert_eq!(
            left.get_all("x-key").iter().count(),
            usize::from(scheme == Scheme::Https)
        );
    });
}

#[test]
fn of_two_matching_entries_that_set_the_same_field_the_first_is_used() {
    let addon = Credentials::new(vec![key("first", SECRET), key("second", "other-secret")]);
    let (mut flow, mut request) = (flow(), request("/", &[]));
    assert_eq!(code(addon.request(&mut flow, &mut request)), None);
    assert_eq!(request.headers.get("x-key").unwrap(), SECRET);
    assert_eq!(flow.record().credential.as_deref(), Some("first"));
}

#[test]
fn an_unusable_secret_denies_the_request_and_is_not_shown() {
    each_row(
        [
            (
                Ok("sk-secret\r\nx: y".to_owned()),
                "bytes that a header must not contain",
            ),
            (
                Ok("sk-secret\0".to_owned()),
                "bytes that a header must not contain",
            ),
            (Ok("  \n".to_owned()), "it is empty"),
            (Ok("s".repeat(20_000)), "longer than"),
            (Err("no such file".to_owned()), "no such file"),
        ],
        |(secret, why)| {
            let source = Arc::new(Source(Mutex::new(secret)));
            let field = HeaderName::from_static("x-key");
            let kind = CredentialKind::SetHeaders(vec![(field, source)]);
            let addon = Credentials::new(vec![credential("k", "api.example.com", kind)]);
            let denial = verdict(addon.request(&mut flow(), &mut request("/", &[]))).unwrap_err();
            assert_eq!(denial.code(), Code::CredentialUnavailable);
            assert_eq!(denial.sentence(), "Credential unavailable: k");
            assert!(denial.edit().unwrap().contains(why), "{:?}", denial.edit());
            assert!(!denial.edit().unwrap().contains("sk-secret"));
        },
    );
}

#[test]
fn a_changed_secret_is_sent_and_scrubbed_with_its_new_value() {
    let changing = source("first-secret");
    let kind = CredentialKind::Bearer(Arc::clone(&changing) as Arc<dyn SecretSource>);
    let addon = Credentials::new(vec![credential("k", "api.example.com", kind)]);
    for secret in ["first-secret", "second-secret"] {
        *changing.0.lock() = Ok(secret.to_owned());
        let (mut flow, mut request) = (flow(), request("/", &[]));
        assert_eq!(code(addon.request(&mut flow, &mut request)), None);
        let sent = request.headers.get("authorization").unwrap();
        assert_eq!(sent.to_str().unwrap(), format!("Bearer {secret}"));
        let back = respond(&addon, &mut flow, &[], &[secret.as_bytes()]).unwrap();
        assert_eq!(back, b"[REDACTED:k]");
    }
}

/// A secret source that counts its reads.
struct Counted {
    secret: Arc<Source>,
    reads: AtomicUsize,
}

impl SecretSource for Counted {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.secret.read()
    }

    fn version(&self) -> u64 {
        self.secret.version()
    }
}

#[test]
fn a_secret_is_read_once_per_version() {
    let counted = Arc::new(Counted {
        secret: source("first-secret"),
        reads: AtomicUsize::new(0),
    });
    let kind = CredentialKind::Bearer(Arc::clone(&counted) as Arc<dyn SecretSource>);
    let addon = Credentials::new(vec![credential("k", "api.example.com", kind)]);
    let ask = || code(addon.request(&mut flow(), &mut request("/", &[])));
    let reads = || counted.reads.load(Ordering::Relaxed);
    let unavailable = Some(Code::CredentialUnavailable);
    for (secret, verdict, reads_in_all) in [
        (Ok("first-secret"), None, 1),
        (Ok("second-secret"), None, 2),
        (Err("gone"), unavailable, 3),
        (Ok("second-secret"), None, 4),
    ] {
        *counted.secret.0.lock() = secret.map(str::to_owned).map_err(str::to_owned);
        for _ in 0..5 {
            assert_eq!(ask(), verdict);
        }
        assert_eq!(reads(), reads_in_all);
    }
}

#[test]
fn a_placeholder_is_refused_if_no_credential_applies_to_the_request() {
    let basic = format!("Basic {}", STANDARD.encode(format!("u:{PLACEHOLDER}")));
    let bearer = format!("Bearer {PLACEHOLDER}");
    let shaped = format!("sk-ant-{PLACEHOLDER}");
    let query = format!("/?key={PLACEHOLDER}");
    let escaped = query.replace('-', "%2D");
    let placed = |path: &str, value: &str| request(path, &[("authorization", value)]);
    let makers: [&dyn Fn() -> Request; 5] = [
        &|| placed("/", &bearer),
        &|| placed("/", &basic),
        &|| placed("/", &shaped),
        &|| placed(&query, "none"),
        &|| placed(&escaped, "none"),
    ];
    for make in makers {
        let other = &mut flow_of(&container("web"), Kind::Http, "other.example.com");
        let misuse = Err(Code::CredentialMisuse);
        assert_eq!(sent(key("k", SECRET), other, &mut make()), misuse);
        let mut clear = flow();
        clear.endpoint_mut().scheme = Scheme::Http;
        assert_eq!(sent(key("k", SECRET), &mut clear, &mut make()), misuse);
        assert!(sent(key("k", SECRET), &mut flow(), &mut make()).is_ok());
    }
    let harmless = "up-placeholder-0123 up-placeholder-xyz";
    let other = &mut flow_of(&container("web"), Kind::Http, "other.example.com");
    assert!(sent(key("k", SECRET), other, &mut placed("/", harmless)).is_ok());
}

#[test]
fn a_clients_own_key_passes_to_a_host_without_a_credential() {
    let other = &mut flow_of(&container("web"), Kind::Http, "other.example.com");
    let mut request = request("/?key=mine", &[("authorization", "mine")]);
    let left = sent(key("k", SECRET), other, &mut request).unwrap();
    assert_eq!(left, headers(&[("authorization", "mine")]));
}

#[test]
fn a_dry_run_names_the_credential_and_does_not_add_the_secret() {
    let mut flow = flow().dry_run();
    let left = sent(key("k", SECRET), &mut flow, &mut request("/", &[])).unwrap();
    assert!(!left.contains_key("x-key"));
    assert_eq!(
        flow.notes().first().unwrap().text,
        "credential k would be added"
    );
}

/// A token source that panics when a token is requested, with the result of its check.
struct NeverAsked(Result<(), String>);

impl TokenSource for NeverAsked {
    fn is_for(&self, _container: &Container) -> bool {
        true
    }

    fn current(&self, _container: &Arc<Container>) -> Option<Arc<Token>> {
        panic!("the current token was requested")
    }

    fn fetch<'a>(
        &'a self,
        _container: &'a Arc<Container>,
    ) -> Pin<Box<dyn Future<Output = Fetched> + Send + 'a>> {
        panic!("a token was fetched")
    }

    fn check(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(std::future::ready(self.0.clone()))
    }

    fn refused(&self, _container: &Container, _token: &Arc<Token>) {}
}

/// A dry run waits for the check, and neither requests the current token nor fetches one.
#[tokio::test]
async fn a_dry_run_fetches_no_token_and_is_denied_if_there_can_be_none() {
    let app = |check: Result<(), &str>| {
        let kind = CredentialKind::Token {
            form: TokenForm::Bearer,
            source: Arc::new(NeverAsked(check.map_err(str::to_owned))),
            login: None,
        };
        credential("app", "api.example.com", kind)
    };
    let addon = Credentials::new(vec![app(Ok(()))]);
    let (mut flow, mut request) = (flow().dry_run(), request("/", &[]));
    assert!(addon.request(&mut flow, &mut request).ready().is_none());

    let container = container("c1");
    for (check, denied) in [
        (Ok(()), None),
        (
            Err("the file is missing"),
            Some(Code::CredentialUnavailable),
        ),
    ] {
        let app = Arc::new(app(check));
        let fetched = fetch(&[&app], &container, true).await;
        assert_eq!(fetched.err().map(|denial| denial.code()), denied);
    }
}
