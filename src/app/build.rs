//! From a configuration to a snapshot: the chain, the resolver, the roots.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use addons::circuit_breaker::{Breakers, CircuitBreakerSettings, Thresholds};
use addons::contract::{Chain, Container, Containers, EntryMap, Host, HostSet, OwnAddresses};
use addons::credentials::TokenSources;
use addons::git::{GitMetrics, GitSettings};
use addons::github::Forge;
use addons::observe::{Audit, Metrics, Traces};
use addons::policy::{Effect, PolicySettings, Rule};
use addons::rate_limit::{
    DnsBudget, Rate, RateBuckets, RateLimitSettings, RequestLimits, TunnelBudget,
};
use addons::{Parts, standard_chain};
use rustls::crypto::CryptoProvider;

use super::failure::Failure;
use super::github;
use crate::config::{self, Config, GitHost, RuleConfig};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::telemetry::PushLog;
use crate::tls::UpstreamTls;
use crate::upstream::{NameserverWatch, OwnListeners, Resolver, SocketBudget};

/// How long a phase may take once an addon waits.
const PHASE_DEADLINE: Duration = Duration::from_secs(10);

/// Counts, budgets and tokens that go on over reloads.
pub struct LongLived {
    pub metrics: Arc<Metrics>,
    pub git_metrics: Arc<GitMetrics>,
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
        let entries = config.allowlist.values();
        let labels = entries.map(|entry| Arc::clone(&entry.label));
        self.long_lived.breakers.name_upstreams(labels);
        self.long_lived.metrics.create_configured(
            config.allowlist.values().map(|entry| &*entry.label),
            config
                .credentials
                .active
                .iter()
                .map(|entry| entry.name.as_str()),
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

    fn chain(&self, config: &Arc<Config>) -> Result<Chain, Failure> {
        let own: Arc<dyn OwnAddresses> = Arc::clone(&self.own) as _;
        let policy = PolicySettings {
            allow_private: config.proxy.upstream.allow_private.clone(),
            own,
            guarded_hosts: guarded_hosts(config),
            rules: config
                .policy
                .rules
                .iter()
                .map(rule)
                .collect::<Result<_, _>>()?,
        };
        let chain = standard_chain(Parts {
            metrics: Arc::clone(&self.long_lived.metrics),
            audit: Arc::clone(&self.long_lived.audit),
            spans: self.long_lived.traces.sink(config.proxy.collector.as_ref()),
            containers: Arc::clone(&self.registry) as _,
            rate_limits: self.rate_limits(config),
            circuit_breakers: self.circuit_breakers(config),
            policy,
            github: github::settings(&config.policy, Arc::clone(&self.long_lived.forge))?,
            git: git(config, Arc::clone(&self.long_lived.git_metrics)),
            credentials: self
                .long_lived
                .token_sources
                .credentials(&config.credentials.active, &|host| {
                    config.policy.git.hosts.iter().any(|git| git.host == *host)
                }),
            deadline: PHASE_DEADLINE,
        });
        chain.map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Failure::Ours(lines.join("\n"))
        })
    }

    fn circuit_breakers(&self, config: &Config) -> CircuitBreakerSettings {
        let breakers = &config.policy.circuit_breakers;
        let mut upstreams = EntryMap::default();
        for (pattern, breaker) in breakers.upstreams.iter() {
            upstreams.insert(pattern, thresholds(*breaker));
        }
        let mut passthrough = EntryMap::default();
        for (pattern, _) in config.proxy.tls.passthrough.iter() {
            passthrough.insert(pattern, ());
        }
        CircuitBreakerSettings {
            defaults: thresholds(breakers.defaults),
            upstreams,
            passthrough,
            breakers: self.long_lived.breakers.clone(),
        }
    }

    fn rate_limits(&self, config: &Config) -> RateLimitSettings {
        let (dns, limits) = (&config.proxy.dns, &config.policy.rate_limits);
        let per_upstream = limits.per_upstream.iter();
        let per_upstream = per_upstream.map(|(pattern, limit)| (pattern, rate(*limit)));
        RateLimitSettings {
            tunnels: TunnelBudget {
                per_second: at_least_one(config.proxy.limits.tunnels_per_second),
            },
            dns: DnsBudget {
                queries_per_minute: at_least_one(dns.queries_per_minute),
                distinct_names_per_minute: at_least_one(dns.distinct_names_per_minute),
            },
            requests: limits
                .enabled
                .then(|| RequestLimits::new(rate(limits.defaults), per_upstream)),
            buckets: self.long_lived.buckets.clone(),
        }
    }
}

fn rule(config: &RuleConfig) -> Result<Rule, Failure> {
    let effect = match config.effect {
        config::Effect::Allow => Effect::Allow,
        config::Effect::Deny => Effect::Deny,
        config::Effect::Ask => Effect::Ask,
    };
    Rule::new(&config.name, effect, config.origin.clone())
        .for_hosts(config.hosts.clone())
        .for_methods(config.methods.clone())
        .for_paths(&config.paths)
        .map_err(|error| Failure::Setting(format!("{}: paths: {error}", config.origin)))
}

fn thresholds(breaker: config::CircuitBreaker) -> Thresholds {
    Thresholds {
        failures: at_least_one(breaker.failure_threshold),
        recovery: breaker.recovery_timeout,
        successes: at_least_one(breaker.success_threshold),
    }
}

fn rate(limit: config::RateLimit) -> Rate {
    Rate {
        per_second: at_least_one(limit.requests_per_second),
        burst: at_least_one(limit.burst_size),
    }
}

/// The configuration allows no zero; a budget of one is the closest to none that there is.
pub fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

/// Where paths are judged, so that one with two readings is refused: the git hosts with those of
/// their APIs.
fn guarded_hosts(config: &Config) -> HostSet {
    let git = config.policy.git.hosts.iter();
    git.flat_map(GitHost::all_hosts).cloned().collect()
}

fn git(config: &Arc<Config>, metrics: Arc<GitMetrics>) -> GitSettings {
    let git = &config.policy.git;
    let listed = Arc::clone(config);
    let reachable = move |container: &Container, host: &Host, port: u16| {
        let entry = listed.allowlist.find(host);
        entry.is_some_and(|entry| entry.ports.contains(&port)) && container.allows(host)
    };
    GitSettings {
        hosts: git.hosts.iter().map(|git| git.host.clone()).collect(),
        bot_branch_prefixes: git.bot_branch_prefixes.clone(),
        allow_branch_deletion: config.policy.allow_branch_deletion,
        public_reads: git.public_reads,
        report_push_denials: git.report_push_denials,
        warning_bytes: git.warning_bytes,
        hard_limit_bytes: git.hard_limit_bytes,
        reachable: Arc::new(reachable),
        watch: Arc::new(PushLog),
        metrics,
    }
}
