//! Builds the credentials of a configuration, and keeps the token sources over reloads.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};

use super::github_app::{AppSettings, AppTokens};
use super::oauth::{OauthSettings, OauthTokens};
use super::{
    Credential, CredentialEntry, CredentialKind, KindSettings, TokenForm, TokenSource as _,
};
use crate::contract::{Host, SystemPorts};

/// The OAuth logins and GitHub Apps. A reload keeps the source, with its tokens, of each entry
/// whose name and `oauth` or `github_app` settings are unchanged.
pub struct TokenSources {
    ports: SystemPorts,
    refreshes: IntCounterVec,
    logins: Mutex<Vec<Arc<OauthTokens>>>,
    apps: Mutex<Vec<Arc<AppTokens>>>,
}

impl TokenSources {
    /// Registers `proxy_oauth_refreshes_total`.
    pub fn new(ports: SystemPorts, metrics: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_oauth_refreshes_total",
            "Refreshes of OAuth logins, by outcome.",
        );
        let refreshes = IntCounterVec::new(opts, &["provider", "outcome"])?;
        metrics.register(Box::new(refreshes.clone()))?;
        Ok(Self {
            ports,
            refreshes,
            logins: Mutex::default(),
            apps: Mutex::default(),
        })
    }

    /// Builds the credentials of the entries. `is_git` says whether a host serves git, and not an
    /// API. A git host takes an App's token as a basic password, an API takes it as a bearer token.
    /// Reads token files, so it may block.
    pub fn credentials(
        &self,
        entries: &[CredentialEntry],
        is_git: &dyn Fn(&Host) -> bool,
    ) -> Vec<Credential> {
        let of_entry = |entry| self.credentials_of(entry, is_git);
        entries.iter().flat_map(of_entry).collect()
    }

    fn credentials_of(
        &self,
        entry: &CredentialEntry,
        is_git: &dyn Fn(&Host) -> bool,
    ) -> Vec<Credential> {
        let source = |secret: &super::SecretSetting| secret.source(&*self.ports.files);
        let kind = match &entry.kind {
            KindSettings::SetHeaders(headers) => {
                let headers = headers.iter();
                let headers = headers.map(|(name, secret)| (name.clone(), source(secret)));
                CredentialKind::SetHeaders(headers.collect())
            }
            KindSettings::Basic { username, password } => CredentialKind::Basic {
                username: username.clone(),
                password: source(password),
            },
            KindSettings::Bearer(secret) => CredentialKind::Bearer(source(secret)),
            KindSettings::Oauth(oauth) => self.login(&entry.name, oauth),
            KindSettings::GithubApp(app) => {
                let tokens = self.app(&entry.name, app);
                let hosts = entry.hosts.iter().cloned();
                let (git, apis) = hosts.partition(|(host, _)| is_git(host));
                let forms = [(TokenForm::Basic, git), (TokenForm::Bearer, apis)];
                let of_form = |(form, hosts)| {
                    let kind = CredentialKind::Token {
                        form,
                        source: Arc::new(Arc::clone(&tokens)),
                        login: None,
                    };
                    credential(entry, kind, hosts)
                };
                return forms.map(of_form).into();
            }
        };
        vec![credential(entry, kind, entry.hosts.clone())]
    }

    fn login(&self, name: &str, settings: &OauthSettings) -> CredentialKind {
        for outcome in ["ok", "refused", "failed"] {
            let provider = settings.login.provider.as_str();
            self.refreshes.with_label_values(&[provider, outcome]);
        }
        let mut logins = self.logins.lock();
        let known = logins.iter().find(|login| login.is(name, settings));
        let tokens = known.cloned().unwrap_or_else(|| {
            let (ports, refreshes) = (self.ports.clone(), self.refreshes.clone());
            let made = OauthTokens::new(name, settings, ports, refreshes, &logins);
            let made = Arc::new(made);
            logins.push(Arc::clone(&made));
            made
        });
        CredentialKind::Token {
            form: TokenForm::Bearer,
            source: Arc::new(tokens),
            login: Some(settings.login.clone()),
        }
    }

    fn app(&self, name: &str, settings: &AppSettings) -> Arc<AppTokens> {
        let mut apps = self.apps.lock();
        let known = apps.iter().find(|app| app.is(name, settings));
        known.cloned().unwrap_or_else(|| {
            let made = Arc::new(AppTokens::new(name, settings, self.ports.clone()));
            apps.push(Arc::clone(&made));
            made
        })
    }

    /// The account of an `oauth` entry's login, if its token file names one.
    pub fn account(&self, name: &str, settings: &OauthSettings) -> Option<String> {
        let logins = self.logins();
        let login = logins.iter().find(|login| login.is(name, settings))?;
        login.account()
    }

    /// Whether, for every login, the file could be read at the latest check and the latest refresh
    /// did not fail. Drops sources that are no longer configured and that no flow uses, except
    /// those whose tokens are not in their file yet: the refresh token in the file may be spent.
    pub fn are_valid(&self) -> bool {
        let is_used =
            |login: &Arc<OauthTokens>| login.is_unwritten() || Arc::strong_count(login) > 1;
        self.logins.lock().retain(is_used);
        self.apps.lock().retain(|app| Arc::strong_count(app) > 1);
        // Each call checks the file of its login, so none is skipped.
        let invalid = self.logins().into_iter().filter(|one| !one.is_valid());
        invalid.count() == 0
    }

    /// Waits for the refreshes under way: the tokens that they yield must be stored.
    pub async fn drain(&self) {
        for login in self.logins() {
            login.drain().await;
        }
    }

    fn logins(&self) -> Vec<Arc<OauthTokens>> {
        self.logins.lock().clone()
    }

    #[cfg(test)]
    pub(super) fn add(&self, login: Arc<OauthTokens>) {
        self.logins.lock().push(login);
    }
}

fn credential(
    entry: &CredentialEntry,
    kind: CredentialKind,
    hosts: Vec<(Host, u16)>,
) -> Credential {
    Credential {
        name: entry.name.as_str().into(),
        hosts,
        kind,
        remove_headers: entry.remove_headers.clone(),
        remove_query: entry.remove_query.clone(),
        remove_cookies: entry.remove_cookies.clone(),
        containers: entry.containers.clone(),
        repos: entry.repos.clone(),
    }
}
