//! From a configuration to a world: the chain, the resolver, the roots.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Chain, Containers, Host, OwnAddresses};
use addons::credentials::{Credential, CredentialKind, TokenForm};
use addons::observe::{Audit, Metrics};
use addons::policy::PolicySettings;
use addons::rate_limit::DnsBudget;
use addons::{Parts, standard_chain};
use rustls::crypto::CryptoProvider;

use super::failure::Failure;
use crate::config::{self, Config, CredentialConfig, GitHost};
use crate::net::{OwnListeners, Resolver};
use crate::registry::Registry;
use crate::secrets;
use crate::system::Lenders;
use crate::tls::UpstreamTls;
use crate::world::World;

/// How long a phase may take once an addon waits.
const PHASE_DEADLINE: Duration = Duration::from_secs(10);

/// Counts and budgets that go on over reloads.
pub struct Observers {
    pub metrics: Arc<Metrics>,
    pub audit: Arc<Audit>,
}

/// What stays the same over reloads.
pub struct Builder {
    registry: Arc<Registry>,
    own: Arc<OwnListeners>,
    provider: Arc<CryptoProvider>,
    observers: Observers,
    lenders: Arc<Lenders>,
}

impl Builder {
    pub fn new(
        registry: Arc<Registry>,
        own: OwnListeners,
        provider: Arc<CryptoProvider>,
        observers: Observers,
        lenders: Arc<Lenders>,
    ) -> Self {
        Self {
            registry,
            own: Arc::new(own),
            provider,
            observers,
            lenders,
        }
    }

    /// Builds a world, or says why the configuration cannot be used.
    pub fn build(&self, epoch: u64, config: Arc<Config>) -> Result<World, Failure> {
        let setting = |error: String| Failure::Setting(error);
        let upstream_ca = config.proxy.tls.upstream_ca.as_deref();
        let upstream_tls = UpstreamTls::load(upstream_ca, Arc::clone(&self.provider))
            .map_err(|error| setting(format!("proxy.yaml: tls.upstream_ca: {error}")))?;
        let resolver = Resolver::new(&config.proxy.upstream)
            .map_err(|error| setting(format!("proxy.yaml: upstream.nameservers: {error}")))?;
        Ok(World {
            epoch,
            chain: Arc::new(self.chain(&config)?),
            containers: Arc::clone(&self.registry) as Arc<dyn Containers>,
            resolver: Arc::new(resolver),
            upstream_tls,
            config,
        })
    }

    /// What an entry lends: the same everywhere, but for an App's token, which git hosts take
    /// as a password and their APIs as a bearer's.
    fn credentials(&self, entry: &CredentialConfig, git: &[GitHost]) -> Vec<Credential> {
        let lenders = &self.lenders;
        match &entry.kind {
            config::CredentialKind::GithubApp(app) => {
                let is_git = |(host, _): &(Host, u16)| git.iter().any(|git| git.host == *host);
                let (git, apis) = entry.hosts.iter().cloned().partition(is_git);
                let forms = [(TokenForm::Basic, git), (TokenForm::Bearer, apis)];
                let of_form = |(form, hosts)| {
                    credential(entry, lenders.github_app(&entry.name, app, form), hosts)
                };
                forms.map(of_form).into()
            }
            config::CredentialKind::Oauth(oauth) => {
                let kind = lenders.oauth(&entry.name, oauth);
                vec![credential(entry, kind, entry.hosts.clone())]
            }
            fixed => {
                let kind = fixed_kind(fixed).into_iter();
                kind.map(|kind| credential(entry, kind, entry.hosts.clone()))
                    .collect()
            }
        }
    }

    fn chain(&self, config: &Config) -> Result<Chain, Failure> {
        let own: Arc<dyn OwnAddresses> = Arc::clone(&self.own) as _;
        let policy = PolicySettings {
            allow_private: config.proxy.upstream.allow_private.clone(),
            own,
            guarded_hosts: guarded_hosts(config),
        };
        let budget = DnsBudget {
            queries_per_minute: at_least_one(config.proxy.dns.queries_per_minute),
            distinct_names_per_minute: at_least_one(config.proxy.dns.distinct_names_per_minute),
        };
        let chain = standard_chain(Parts {
            metrics: Arc::clone(&self.observers.metrics),
            audit: Arc::clone(&self.observers.audit),
            containers: Arc::clone(&self.registry) as _,
            dns_budget: budget,
            policy,
            credentials: config
                .credentials
                .iter()
                .flat_map(|entry| self.credentials(entry, &config.policy.git.hosts))
                .collect(),
            deadline: PHASE_DEADLINE,
        });
        chain.map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Failure::Ours(lines.join("\n"))
        })
    }
}

/// The configuration allows no zero; a budget of one is the closest to none that there is.
pub fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

/// Where paths are judged, so that one with two readings is refused: the git hosts with those of
/// their APIs.
fn guarded_hosts(config: &Config) -> HashSet<Host> {
    let git = config.policy.git.hosts.iter();
    git.flat_map(GitHost::all_hosts).cloned().collect()
}

fn fixed_kind(config: &config::CredentialKind) -> Option<CredentialKind> {
    Some(match config {
        config::CredentialKind::SetHeaders(headers) => {
            let headers = headers
                .iter()
                .map(|(name, secret)| (name.clone(), secrets::source(secret)));
            CredentialKind::SetHeaders(headers.collect())
        }
        config::CredentialKind::Basic { username, password } => CredentialKind::Basic {
            username: username.clone(),
            password: secrets::source(password),
        },
        config::CredentialKind::Bearer(secret) => CredentialKind::Bearer(secrets::source(secret)),
        config::CredentialKind::GithubApp(_) | config::CredentialKind::Oauth(_) => return None,
    })
}

fn credential(
    config: &CredentialConfig,
    kind: CredentialKind,
    hosts: Vec<(Host, u16)>,
) -> Credential {
    Credential {
        name: config.name.as_str().into(),
        hosts,
        kind,
        remove_headers: config.remove_headers.clone(),
        remove_query: config.remove_query.clone(),
        remove_cookies: config.remove_cookies.clone(),
        containers: config.containers.clone(),
        repos: config.repos.clone(),
    }
}
