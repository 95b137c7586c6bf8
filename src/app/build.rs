//! From a configuration to a snapshot: the chain, the resolver, the roots.

use std::sync::Arc;
use std::time::Duration;

use addons::circuit_breaker::Breakers;
use addons::contract::{Chain, Containers, Host, OwnAddresses};
use addons::credentials::{Credential, CredentialKind, TokenForm};
use addons::forges::ForgeHosts;
use addons::github::Forge;
use addons::observe::{Audit, Metrics};
use addons::rate_limit::RateBuckets;
use addons::{Ports, standard_chain};
use rustls::crypto::CryptoProvider;

use super::failure::Failure;
use crate::config::{self, Config, CredentialConfig};
use crate::outbound::{TokenSources, Traces};
use crate::registry::Registry;
use crate::secrets;
use crate::snapshot::Snapshot;
use crate::telemetry::PushLog;
use crate::tls::UpstreamTls;
use crate::upstream::{NameserverWatch, OwnListeners, Resolver, SocketBudget};

/// How long a phase may take once an addon waits.
const PHASE_DEADLINE: Duration = Duration::from_secs(10);

/// Counts, budgets and tokens that go on over reloads.
pub struct LongLived {
    pub metrics: Arc<Metrics>,
    pub audit: Arc<Audit>,
    pub buckets: RateBuckets,
    pub breakers: Breakers,
    pub token_sources: Arc<TokenSources>,
    pub forge: Arc<dyn Forge>,
    pub sockets: Arc<SocketBudget>,
    /// Questions to nameservers that may be under way at once.
    pub lookups: usize,
    pub traces: Traces,
    pub nameservers: Arc<NameserverWatch>,
}

/// What stays the same over reloads.
pub struct Builder {
    registry: Arc<Registry>,
    own: Arc<OwnListeners>,
    provider: Arc<CryptoProvider>,
    long_lived: LongLived,
}

impl Builder {
    pub fn new(
        registry: Arc<Registry>,
        own: OwnListeners,
        provider: Arc<CryptoProvider>,
        long_lived: LongLived,
    ) -> Self {
        Self {
            registry,
            own: Arc::new(own),
            provider,
            long_lived,
        }
    }

    /// Builds a snapshot, or says why the configuration cannot be used. The resolver stays, with all
    /// that it knows, unless `upstream` is another than in the snapshot before.
    pub fn build(
        &self,
        generation: u64,
        config: Arc<Config>,
        before: Option<&Snapshot>,
    ) -> Result<Snapshot, Failure> {
        let setting = |error: String| Failure::Setting(error);
        let upstream_ca = config.proxy.tls.upstream_ca.as_deref();
        let upstream_tls = UpstreamTls::load(upstream_ca, Arc::clone(&self.provider))
            .map_err(|error| setting(format!("proxy.yaml: tls.upstream_ca: {error}")))?;
        let upstream = &config.proxy.upstream;
        let resolver = match before {
            Some(before) if before.config.proxy.upstream == *upstream => {
                Arc::clone(&before.resolver)
            }
            _ => {
                let resolver = Resolver::new(upstream).map_err(|error| {
                    setting(format!("proxy.yaml: upstream.nameservers: {error}"))
                })?;
                let watch = Arc::clone(&self.long_lived.nameservers);
                let resolver = resolver.with_room_for(self.long_lived.lookups);
                Arc::new(resolver.watched_by(watch))
            }
        };
        let chain = Arc::new(self.chain(&config)?);
        let entries = || config.addons.allowlist.values();
        let labels = entries().map(|entry| Arc::clone(&entry.label));
        self.long_lived.breakers.name_upstreams(labels);
        self.long_lived.metrics.create_configured(
            entries().map(|entry| &*entry.label),
            config.credentials.iter().map(|entry| entry.name.as_str()),
        );
        Ok(Snapshot {
            generation,
            chain,
            containers: Arc::clone(&self.registry) as Arc<dyn Containers>,
            resolver,
            sockets: Arc::clone(&self.long_lived.sockets),
            upstream_tls,
            config,
        })
    }

    /// What an entry injects: the same everywhere, but for an App's token, which git hosts take
    /// as a password and their APIs as a bearer's.
    fn credentials(&self, entry: &CredentialConfig, forges: &[ForgeHosts]) -> Vec<Credential> {
        let token_sources = &self.long_lived.token_sources;
        match &entry.kind {
            config::CredentialKind::GithubApp(app) => {
                let is_git =
                    |(host, _): &(Host, u16)| forges.iter().any(|forge| forge.host == *host);
                let (git, apis) = entry.hosts.iter().cloned().partition(is_git);
                let forms = [(TokenForm::Basic, git), (TokenForm::Bearer, apis)];
                let of_form = |(form, hosts)| {
                    credential(
                        entry,
                        token_sources.github_app(&entry.name, app, form),
                        hosts,
                    )
                };
                forms.map(of_form).into()
            }
            config::CredentialKind::Oauth(oauth) => {
                let kind = token_sources.oauth(&entry.name, oauth);
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
        let forges = &config.addons.github.hosts;
        let credentials = config.credentials.iter();
        let ports = Ports {
            metrics: Arc::clone(&self.long_lived.metrics),
            audit: Arc::clone(&self.long_lived.audit),
            spans: self.long_lived.traces.sink(config.proxy.collector.as_ref()),
            containers: Arc::clone(&self.registry) as _,
            buckets: self.long_lived.buckets.clone(),
            breakers: self.long_lived.breakers.clone(),
            own: Arc::clone(&self.own) as Arc<dyn OwnAddresses>,
            forge: Arc::clone(&self.long_lived.forge),
            push_watch: Arc::new(PushLog),
            credentials: credentials
                .flat_map(|entry| self.credentials(entry, forges))
                .collect(),
            deadline: PHASE_DEADLINE,
        };
        standard_chain(&config.addons, ports).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Failure::Ours(lines.join("\n"))
        })
    }
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
