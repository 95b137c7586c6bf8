//! All who get tokens, kept over reloads.

use std::sync::Arc;

use addons::credentials::{CredentialKind, TokenForm, TokenSource};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};

use super::github_app::{AppSource, AppTokens};
use super::oauth::{OauthSource, OauthTokens};
use crate::config::{GithubAppConfig, OauthConfig};
use crate::upstream::OutboundClient;

/// Gives each entry of the configuration its tokens: an entry that a reload did not change keeps
/// those it has, so that no login is ever refreshed by two at once.
pub struct TokenSources {
    client: Arc<OutboundClient>,
    refreshes: IntCounterVec,
    logins: Mutex<Vec<Arc<OauthTokens>>>,
    apps: Mutex<Vec<Arc<AppTokens>>>,
}

impl TokenSources {
    /// Registers `proxy_oauth_refreshes_total` and begins.
    pub fn new(client: Arc<OutboundClient>, metrics: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_oauth_refreshes_total",
            "Refreshes of OAuth logins, by outcome.",
        );
        let refreshes = IntCounterVec::new(opts, &["provider", "outcome"])?;
        metrics.register(Box::new(refreshes.clone()))?;
        Ok(Self {
            client,
            refreshes,
            logins: Mutex::default(),
            apps: Mutex::default(),
        })
    }

    /// The kind of an `oauth` entry.
    pub fn oauth(&self, name: &str, config: &OauthConfig) -> CredentialKind {
        for outcome in ["ok", "refused", "failed"] {
            let provider = config.login.provider.as_str();
            self.refreshes.with_label_values(&[provider, outcome]);
        }
        let mut logins = self.logins.lock();
        let known = logins.iter().find(|login| login.is(name, config)).cloned();
        let tokens = known.unwrap_or_else(|| {
            let (client, refreshes) = (Arc::clone(&self.client), self.refreshes.clone());
            let made = Arc::new(OauthTokens::new(name, config, client, refreshes, &logins));
            logins.push(Arc::clone(&made));
            made
        });
        CredentialKind::Token {
            form: TokenForm::Bearer,
            source: Arc::new(OauthSource(tokens)),
            login: Some(config.login.clone()),
        }
    }

    /// The account of an `oauth` entry's login, where its token file names one.
    pub fn account(&self, name: &str, config: &OauthConfig) -> Option<String> {
        let logins = self.logins();
        let login = logins.iter().find(|login| login.is(name, config))?;
        login.account()
    }

    /// The kind of a `github_app` entry, as git hosts or as their APIs take it.
    pub fn github_app(
        &self,
        name: &str,
        config: &GithubAppConfig,
        form: TokenForm,
    ) -> CredentialKind {
        let mut apps = self.apps.lock();
        let known = apps.iter().find(|app| app.is(name, config)).cloned();
        let tokens = known.unwrap_or_else(|| {
            let made = Arc::new(AppTokens::new(name, config, Arc::clone(&self.client)));
            apps.push(Arc::clone(&made));
            made
        });
        CredentialKind::Token {
            form,
            source: Arc::new(AppSource(tokens)) as Arc<dyn TokenSource>,
            login: None,
        }
    }

    /// Forgets entries that are no longer configured and that no flow uses.
    pub fn prune(&self) {
        self.logins
            .lock()
            .retain(|login| Arc::strong_count(login) > 1);
        self.apps.lock().retain(|app| Arc::strong_count(app) > 1);
    }

    /// Whether every login can be read and refreshed, and none waits for somebody to log in anew.
    pub fn are_well(&self) -> bool {
        self.prune();
        self.logins().iter().all(OauthTokens::is_well)
    }

    /// Waits for the refreshes under way: what their endpoints answer must not be lost.
    pub async fn rest(&self) {
        for login in self.logins() {
            login.rest().await;
        }
    }

    fn logins(&self) -> Vec<Arc<OauthTokens>> {
        self.logins.lock().clone()
    }
}
