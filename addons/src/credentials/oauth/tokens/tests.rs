//! Tokens and their file, with concurrent readers and writers of the file.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use prometheus::{Opts, Registry};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use super::renewal::RefreshRequest;
use super::*;
use crate::contract::{Outbound, OutboundError};
use crate::credentials::TokenSources;
use crate::credentials::oauth::{Provider, TokenUrl};
use crate::fixtures::container;
use crate::fixtures::ports::{MemoryFiles, TestTasks};

const PATH: &str = "/logins/token.json";

struct Fixture {
    files: MemoryFiles,
    endpoint: Arc<Endpoint>,
    tokens: Arc<OauthTokens>,
}

/// A token endpoint that answers once for each permit of `answers`.
struct Endpoint {
    asked: AtomicUsize,
    answers: Semaphore,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self {
            asked: AtomicUsize::new(0),
            answers: Semaphore::new(0),
        }
    }
}

impl Outbound for Endpoint {
    fn send<'a>(
        &'a self,
        _: &'a Arc<System>,
        _: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, OutboundError>> {
        Box::pin(async {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let answer = self.answers.acquire().await;
            answer.unwrap().forget();
            let body =
                json!({ "access_token": "second", "refresh_token": "rotated", "expires_in": 3600 });
            Ok(Response::new(Bytes::from(body.to_string())))
        })
    }

    fn look_up<'a>(
        &'a self,
        _: &'a Arc<Container>,
        _: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, OutboundError>> {
        unreachable!("no token is fetched by a look-up");
    }
}

fn settings(path: &str) -> OauthSettings {
    OauthSettings {
        login: Login {
            provider: Provider::Generic,
            token_url: TokenUrl::parse("https://login.example.com/token").unwrap(),
            client_id: "client".to_owned(),
            scopes: Vec::new(),
            entry: String::new(),
        },
        token_file: path.into(),
        client_secret: None,
    }
}

/// A file with an expired token.
fn file(name: &str) -> String {
    let tokens = json!({
        "access_token": name, "refresh_token": format!("refresh-{name}"), "expires_at": 1,
    });
    tokens.to_string()
}

fn start() -> Fixture {
    let (files, endpoint) = (MemoryFiles::default(), Arc::new(Endpoint::default()));
    files.write(Path::new(PATH), file("first"));
    let opts = Opts::new("refreshes", "refreshes");
    let refreshes = IntCounterVec::new(opts, &["provider", "outcome"]).unwrap();
    let ports = SystemPorts {
        outbound: Arc::clone(&endpoint) as _,
        files: Arc::new(files.clone()),
        tasks: Arc::new(TestTasks),
    };
    let tokens = OauthTokens::new("login", &settings(PATH), ports, refreshes, &[]);
    Fixture {
        files,
        endpoint,
        tokens: Arc::new(tokens),
    }
}

impl Fixture {
    fn prepare(&self) -> RefreshRequest {
        self.tokens.prepare().unwrap().unwrap()
    }

    fn answer(&self, request: RefreshRequest, access: &str) {
        let body =
            json!({ "access_token": access, "refresh_token": "rotated", "expires_in": 3600 });
        let response = Response::new(Bytes::from(body.to_string()));
        self.tokens
            .keep(&request.sent, request.replacement, response);
    }

    fn write(&self, name: &str) {
        self.files.write(Path::new(PATH), file(name));
    }

    fn in_file(&self, key: &str) -> String {
        let text = self.files.text(Path::new(PATH)).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        file[key].as_str().unwrap().to_owned()
    }

    fn in_use(&self) -> String {
        let known = self.tokens.known.lock();
        let access = known.current.as_ref().unwrap().tokens.access.clone();
        access.unwrap().to_string()
    }

    fn has_token_to_send(&self) -> bool {
        self.tokens.known.lock().to_send().is_some()
    }

    /// Ends the wait after a failed refresh, and returns how long it was.
    fn wait(&self) -> Duration {
        let mut known = self.tokens.known.lock();
        let failed = known.failed.as_mut().unwrap();
        failed.until = Instant::now();
        failed.wait
    }
}

#[test]
fn touching_the_file_during_a_refresh_loses_no_token() {
    let login = start();
    let request = login.prepare();
    login.files.touch(Path::new(PATH));
    login.tokens.reread();
    login.answer(request, "second");
    assert_eq!(login.in_file("refresh_token"), "rotated");
    assert!(login.has_token_to_send());
}

#[test]
fn a_login_during_a_refresh_is_never_overwritten() {
    let login = start();
    let request = login.prepare();
    login.write("newer");
    login.answer(request, "second");
    assert_eq!(login.in_file("access_token"), "newer");
    assert_eq!(login.in_use(), "newer");

    // A login while the new tokens are being written is not overwritten either.
    let request = login.prepare();
    let tokens = &login.tokens;
    let answered = br#"{ "access_token": "second", "refresh_token": "rotated" }"#;
    let refreshed = tokens.refreshed(&request.sent, StatusCode::OK, answered);
    let (current, _) = tokens.ready(refreshed.unwrap().unwrap()).unwrap();
    tokens.known.lock().renew(current);
    login.write("newest");
    tokens.write(request.replacement);
    assert_eq!(login.in_file("access_token"), "newest");
    assert_eq!(login.in_use(), "newest");
}

#[test]
fn tokens_that_could_not_be_written_are_sent_and_written_before_the_next_refresh() {
    let login = start();
    let (path, aside) = (Path::new(PATH), Path::new("/logins/aside"));
    let request = login.prepare();
    login.files.rename(path, aside);
    login.answer(request, "second");
    assert!(!login.tokens.known.lock().is_valid());
    assert!(
        login.files.text(path).is_none(),
        "a removed file is not created again"
    );
    login.files.rename(aside, path);
    login.tokens.reread();
    assert!(login.has_token_to_send());
    assert!(
        !login.tokens.known.lock().is_valid(),
        "the new tokens are not written yet"
    );
    assert_eq!(login.in_use(), "second");
    login.wait();
    assert!(login.tokens.prepare().unwrap().is_none());
    assert_eq!(login.in_file("refresh_token"), "rotated");
    assert!(login.tokens.known.lock().is_valid());
}

#[test]
fn a_rotated_refresh_token_is_kept_even_if_the_access_token_is_unusable() {
    let login = start();
    for wait in [5, 10, 20] {
        login.answer(login.prepare(), "not\na token");
        assert_eq!(login.in_file("refresh_token"), "rotated");
        assert!(!login.has_token_to_send());
        assert!(
            login.tokens.prepare().unwrap().is_none(),
            "no refresh is due right after a failure"
        );
        assert_eq!(login.wait(), Duration::from_secs(wait));
    }
    login.answer(login.prepare(), "second");
    assert!(login.has_token_to_send() && login.tokens.known.lock().is_valid());
}

#[test]
fn the_current_token_is_sent_while_another_flow_reads_the_file() {
    let login = start();
    login.answer(login.prepare(), "second");
    login.tokens.known.lock().checked = None;
    let source = Arc::clone(&login.tokens);
    let container = container("web");
    assert!(
        source.current(&container).is_none(),
        "if no other flow reads the file, this flow checks it first"
    );
    let _at_file = login.tokens.file_access.try_lock().unwrap();
    assert!(source.current(&container).is_some());
}

#[test]
fn sources_of_the_same_token_file_share_a_refresh_lock_over_a_reload() {
    const LINK: &str = "/logins/link";
    let login = start();
    login.files.link(Path::new(PATH), Path::new(LINK));
    let source_after_reload = |path| {
        let (ports, refreshes) = (login.tokens.ports.clone(), login.tokens.refreshes.clone());
        let others = [Arc::clone(&login.tokens)];
        OauthTokens::new("other", &settings(path), ports, refreshes, &others)
    };
    let _alone = login.tokens.refreshing.try_lock().unwrap();
    assert!(source_after_reload(PATH).refreshing.try_lock().is_err());
    assert!(source_after_reload(LINK).refreshing.try_lock().is_err());
}

#[test]
fn concurrent_flows_wait_for_one_refresh_that_survives_a_disconnect() {
    let login = start();
    let container = container("web");
    let fetch = || {
        let (tokens, container) = (Arc::clone(&login.tokens), Arc::clone(&container));
        tokio::spawn(async move { tokens.fetch(&container).await.is_ok() })
    };
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let gone = fetch();
        while login.endpoint.asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        gone.abort();
        assert!(gone.await.is_err());
        let (one, other) = (fetch(), fetch());
        login.endpoint.answers.add_permits(1);
        assert!(one.await.unwrap() && other.await.unwrap());
    });
    assert_eq!(login.endpoint.asked.load(Ordering::Relaxed), 1);
    assert_eq!(login.in_file("refresh_token"), "rotated");
}

impl Fixture {
    /// A source of the same file after a reload that changed the entry's name and scopes.
    fn reloaded(&self, path: &str) -> Fixture {
        let mut settings = settings(path);
        settings.login.scopes = vec!["more".to_owned()];
        let (ports, refreshes) = (self.tokens.ports.clone(), self.tokens.refreshes.clone());
        let others = [Arc::clone(&self.tokens)];
        Fixture {
            files: self.files.clone(),
            endpoint: Arc::clone(&self.endpoint),
            tokens: Arc::new(OauthTokens::new(
                "changed", &settings, ports, refreshes, &others,
            )),
        }
    }

    /// Refreshes the login, and makes the write of its tokens fail.
    fn refresh_unwritten(&self) {
        let (path, aside) = (Path::new(PATH), Path::new("/logins/aside"));
        let request = self.prepare();
        self.files.rename(path, aside);
        self.answer(request, "second");
        self.files.rename(aside, path);
        assert_eq!(self.in_file("refresh_token"), "refresh-first");
    }
}

#[test]
fn tokens_that_could_not_be_written_are_taken_over_by_a_changed_entry() {
    let login = start();
    login.refresh_unwritten();
    let changed = login.reloaded(PATH);
    assert_eq!(changed.in_use(), "second");
    assert!(
        changed.tokens.prepare().unwrap().is_none(),
        "the spent token is not sent"
    );
    assert_eq!(login.in_file("refresh_token"), "rotated");
    // The former source reads them from the file, and does not write its own again.
    login.wait();
    assert!(login.tokens.prepare().unwrap().is_none());
    assert!(!login.tokens.is_unwritten() && !changed.tokens.is_unwritten());
}

#[test]
fn tokens_of_a_refresh_that_was_under_way_at_a_reload_are_taken_over() {
    let login = start();
    let request = login.prepare();
    let changed = login.reloaded(PATH);
    assert_eq!(changed.in_use(), "first");
    let (path, aside) = (Path::new(PATH), Path::new("/logins/aside"));
    login.files.rename(path, aside);
    login.answer(request, "second");
    login.files.rename(aside, path);
    assert!(
        changed.tokens.prepare().unwrap().is_none(),
        "the spent token is not sent"
    );
    assert_eq!(changed.in_file("refresh_token"), "rotated");
}

#[test]
fn a_new_login_replaces_tokens_that_could_not_be_written() {
    let login = start();
    login.refresh_unwritten();
    login.write("newer");
    let changed = login.reloaded(PATH);
    assert_eq!(changed.in_use(), "newer");
    assert_eq!(changed.in_file("access_token"), "newer");
    assert!(!changed.tokens.is_unwritten());
}

#[test]
fn tokens_of_an_entry_that_was_removed_are_written_once_the_file_can_be() {
    let mut login = start();
    login.refresh_unwritten();
    let sources = TokenSources::new(login.tokens.ports.clone(), &Registry::new()).unwrap();
    let of_entry = std::mem::replace(&mut login.tokens, start().tokens);
    let kept = Arc::downgrade(&of_entry);
    sources.add(of_entry);
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        sources.are_valid();
        login.tokens = kept.upgrade().expect("the source is kept");
        login.wait();
        login.tokens.reread();
        while login.tokens.is_unwritten() {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(login.in_file("refresh_token"), "rotated");
    assert_eq!(login.endpoint.asked.load(Ordering::Relaxed), 0);
    drop(login);
    runtime.block_on(async {
        while kept.strong_count() > 0 {
            sources.are_valid();
            tokio::task::yield_now().await;
        }
    });
}
