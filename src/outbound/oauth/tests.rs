//! What becomes of the tokens and of their file, whoever else is at it.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use addons::contract::{AuthMode, ContainerId, LeaseId, Level, Registration, Source};
use addons::credentials::oauth::{Provider, TokenUrl};
use prometheus::Opts;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

struct House {
    dir: TempDir,
    tokens: Arc<OauthTokens>,
}

fn config(dir: &TempDir) -> OauthConfig {
    OauthConfig {
        login: Login {
            provider: Provider::Generic,
            token_url: TokenUrl::parse("https://login.example.com/token").unwrap(),
            client_id: "client".to_owned(),
            scopes: Vec::new(),
            entry: String::new(),
        },
        token_file: dir.path().join("token.json"),
        client_secret: None,
    }
}

/// Tokens that ran out.
fn file(name: &str) -> String {
    let tokens = json!({
        "access_token": name, "refresh_token": format!("refresh-{name}"), "expires_at": 1,
    });
    tokens.to_string()
}

fn start() -> House {
    let dir = TempDir::new().unwrap();
    let config = config(&dir);
    fs::write(&config.token_file, file("first")).unwrap();
    let opts = Opts::new("refreshes", "refreshes");
    let refreshes = IntCounterVec::new(opts, &["provider", "outcome"]).unwrap();
    let client = Arc::new(OutboundClient::default());
    let tokens = Arc::new(OauthTokens::new("login", &config, client, refreshes, &[]));
    House { dir, tokens }
}

impl House {
    fn path(&self) -> &PathBuf {
        &self.tokens.config.token_file
    }

    fn prepare(&self) -> RefreshRequest {
        self.tokens.prepare().unwrap().unwrap()
    }

    fn answer(&self, errand: RefreshRequest, access: &str) {
        let body =
            json!({ "access_token": access, "refresh_token": "rotated", "expires_in": 3600 });
        let response = Response::new(Bytes::from(body.to_string()));
        self.tokens.keep(&errand.sent, errand.replacement, response);
    }

    fn in_file(&self, key: &str) -> String {
        let file: Value = serde_json::from_slice(&fs::read(self.path()).unwrap()).unwrap();
        file[key].as_str().unwrap().to_owned()
    }

    fn in_use(&self) -> String {
        let known = self.tokens.known.lock();
        let access = known.held.as_ref().unwrap().tokens.access.clone();
        access.unwrap().to_string()
    }

    fn is_lent(&self) -> bool {
        self.tokens.known.lock().to_send().is_some()
    }

    /// The time of a back-off goes by; answers how long it was.
    fn wait(&self) -> Duration {
        let mut known = self.tokens.known.lock();
        let failed = known.failed.as_mut().unwrap();
        failed.until = Instant::now();
        failed.wait
    }
}

fn container() -> Arc<Container> {
    let now = OffsetDateTime::now_utc();
    Arc::new(Container::new(Registration {
        id: ContainerId::parse("web").unwrap(),
        lease: LeaseId::generate(),
        source: Source::Address(Ipv4Addr::LOCALHOST.into()),
        repos: Vec::new(),
        auth_mode: AuthMode::Bot,
        created_at: now,
        expires_at: now,
        allowed_domains: None,
        level: Level::Public,
    }))
}

#[test]
fn a_backup_or_another_mode_during_a_refresh_loses_no_token() {
    let house = start();
    let errand = house.prepare();
    fs::hard_link(house.path(), house.dir.path().join("backup")).unwrap();
    house.tokens.look();
    house.answer(errand, "second");
    assert_eq!(house.in_file("refresh_token"), "rotated");
    assert!(house.is_lent());
}

#[test]
fn a_login_during_a_refresh_is_never_overwritten() {
    let house = start();
    let errand = house.prepare();
    fs::write(house.path(), file("anew")).unwrap();
    house.answer(errand, "second");
    assert_eq!(house.in_file("access_token"), "anew");
    assert_eq!(house.in_use(), "anew");

    // Nor one that comes while the new tokens are on their way to the disk.
    let errand = house.prepare();
    let tokens = &house.tokens;
    let answered = br#"{ "access_token": "second", "refresh_token": "rotated" }"#;
    let refreshed = tokens.refreshed(&errand.sent, StatusCode::OK, answered);
    let (held, _) = tokens.ready(refreshed.unwrap().unwrap()).unwrap();
    tokens.known.lock().renew(held);
    fs::write(house.path(), file("newest")).unwrap();
    tokens.write(errand.replacement);
    assert_eq!(house.in_file("access_token"), "newest");
    assert_eq!(house.in_use(), "newest");
}

#[test]
fn tokens_that_could_not_be_written_are_lent_and_written_before_others_are_asked_for() {
    let house = start();
    let aside = house.dir.path().join("aside");
    let errand = house.prepare();
    fs::rename(house.path(), &aside).unwrap();
    house.answer(errand, "second");
    assert!(!house.tokens.known.lock().is_well());
    assert!(!house.path().exists(), "who took it away is right");
    fs::rename(&aside, house.path()).unwrap();
    house.tokens.look();
    assert!(house.is_lent());
    assert!(!house.tokens.known.lock().is_well(), "it is owed");
    assert_eq!(house.in_use(), "second");
    house.wait();
    assert!(house.tokens.prepare().unwrap().is_none());
    assert_eq!(house.in_file("refresh_token"), "rotated");
    assert!(house.tokens.known.lock().is_well());
}

#[test]
fn a_rotated_refresh_token_is_kept_though_the_access_token_cannot_be_used() {
    let house = start();
    for wait in [5, 10, 20] {
        house.answer(house.prepare(), "not\na token");
        assert_eq!(house.in_file("refresh_token"), "rotated");
        assert!(!house.is_lent());
        assert!(house.tokens.prepare().unwrap().is_none(), "it waits");
        assert_eq!(house.wait(), Duration::from_secs(wait));
    }
    house.answer(house.prepare(), "second");
    assert!(house.is_lent() && house.tokens.known.lock().is_well());
}

#[test]
fn a_token_is_at_hand_though_the_disk_takes_its_time() {
    let house = start();
    house.answer(house.prepare(), "second");
    house.tokens.known.lock().looked = None;
    let source = OauthSource(Arc::clone(&house.tokens));
    let container = container();
    assert!(
        source.at_hand(&container).is_none(),
        "it is looked at first"
    );
    let _at_file = house.tokens.at_file.try_lock().unwrap();
    assert!(source.at_hand(&container).is_some());
}

#[test]
fn an_entry_under_another_name_shares_the_one_refresh_of_its_file() {
    let house = start();
    let link = house.dir.path().join("link");
    std::os::unix::fs::symlink(house.path(), &link).unwrap();
    let renamed = |path: &PathBuf| {
        let mut config = config(&house.dir);
        config.token_file = path.clone();
        let (client, refreshes) = (Arc::default(), house.tokens.refreshes.clone());
        OauthTokens::new(
            "other",
            &config,
            client,
            refreshes,
            &[Arc::clone(&house.tokens)],
        )
    };
    let _alone = house.tokens.refreshing.try_lock().unwrap();
    assert!(renamed(house.path()).refreshing.try_lock().is_err());
    assert!(renamed(&link).refreshing.try_lock().is_err());
}
