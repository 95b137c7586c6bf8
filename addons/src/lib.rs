//! The chain of addons that every flow passes, and the contract between the addons and the engine.
//!
//! This crate only decides: it opens no socket, no database and no TLS session. For I/O, an addon
//! uses a trait that the engine implements.
#![deny(missing_docs)]

#[cfg(test)]
extern crate self as addons;

pub mod circuit_breaker;
pub mod contract;
pub mod credentials;
pub mod decode;
pub mod forges;
pub mod git;
pub mod github;
mod header_names;
pub mod identity;
pub mod json;
pub mod mcp;
pub mod observe;
pub mod policy;
pub mod rate_limit;

#[cfg(test)]
#[path = "../tests/fixtures/mod.rs"]
mod fixtures;

use std::sync::Arc;
use std::time::Duration;

use circuit_breaker::{Breakers, CircuitBreaker, CircuitBreakerSettings};
use contract::settings::{Files, Passthrough};
use contract::{
    Allowlist, ApprovalLedger, Chain, Container, Containers, Host, Link, OrderError, OwnAddresses,
    SecretFiles, SystemPorts,
};
use credentials::{CredentialSettings, Credentials, TokenSources};
use git::{Git, GitMetrics, GitSettings};
use github::{Forge, Github, GithubSettings};
use identity::Identity;
use mcp::{Mcp, McpPorts, McpSettings};
use observe::{Audit, AuditSettings, AuditSink, Collector, Metrics, Trace, Traces};
use policy::{Policy, PolicySettings};
use prometheus::Registry;
use rate_limit::{RateBuckets, RateLimit, RateLimitSettings, Rejections};

/// The settings of all addons.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hosts that containers may reach.
    pub allowlist: Arc<Allowlist>,
    /// The limits on the lines that one container may cause in the audit log.
    pub audit: AuditSettings,
    /// The limits of a lease on requests to each upstream, on tunnels, and on DNS questions.
    pub rate_limit: RateLimitSettings,
    /// The thresholds and times of the circuit breakers.
    pub circuit_breaker: CircuitBreakerSettings,
    /// The operator's rules, and the addresses that may be dialled.
    pub policy: PolicySettings,
    /// The permitted use of GitHub's APIs.
    pub github: GithubSettings,
    /// The permitted use of git hosts.
    pub git: GitSettings,
    /// The secrets to inject.
    pub credentials: CredentialSettings,
    /// The MCP servers, and the rules for their tools.
    pub mcp: Arc<McpSettings>,
    /// The collector of spans, if there is one.
    pub collector: Option<Collector>,
}

impl Settings {
    /// Reads the settings of every addon. Errors are added to the report that the documents in
    /// `files` share. Accesses the files that hold secrets, so it may block.
    pub fn read(files: &Files<'_>, secret_files: &dyn SecretFiles) -> Self {
        Self {
            allowlist: Arc::new(policy::read_allowlist(files)),
            audit: AuditSettings::read(files),
            rate_limit: RateLimitSettings::read(files),
            circuit_breaker: CircuitBreakerSettings::read(files),
            policy: PolicySettings::read(files),
            github: GithubSettings::read(files),
            git: GitSettings::read(files),
            credentials: CredentialSettings::read(files, secret_files),
            mcp: Arc::new(McpSettings::read(files, secret_files)),
            collector: Collector::read(files),
        }
    }

    /// Reports conflicts between files that are each valid.
    pub fn check(&self, files: &Files<'_>) {
        let passthrough = Passthrough::read(files);
        self.policy.check(&passthrough);
        GitSettings::check(files, &passthrough);
        self.credentials.check(files, &passthrough, &self.allowlist);
    }
}

/// The state of the addons, which is kept over reloads.
#[derive(Clone)]
pub struct State {
    /// Metrics of flows.
    pub metrics: Arc<Metrics>,
    /// The audit log.
    pub audit: Arc<Audit>,
    /// The circuit breakers of the upstreams.
    pub breakers: Breakers,
    /// The buckets of the rate limits.
    pub buckets: RateBuckets,
    /// The OAuth logins and GitHub Apps, with their tokens.
    pub token_sources: Arc<TokenSources>,
    traces: Arc<Traces>,
    git_metrics: Arc<GitMetrics>,
    rejections: Rejections,
    forge: Arc<Forge>,
}

impl State {
    /// Makes the state, and registers the metrics of the addons. Fails if `registry` already has a
    /// metric of the same name.
    pub fn new(
        audit: AuditSettings,
        sink: Arc<dyn AuditSink>,
        ports: SystemPorts,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            metrics: Arc::new(Metrics::new(registry)?),
            audit: Arc::new(Audit::new(audit, sink, registry)?),
            breakers: Breakers::new(registry)?,
            buckets: RateBuckets::new(registry)?,
            token_sources: Arc::new(TokenSources::new(ports.clone(), registry)?),
            git_metrics: Arc::new(GitMetrics::new(registry)?),
            rejections: Rejections::new(registry)?,
            forge: Arc::new(Forge::new(Arc::clone(&ports.outbound))),
            traces: Arc::new(Traces::new(ports, registry)?),
        })
    }
}

/// The state of the addons, and the implementations that they need from the engine.
pub struct Ports {
    /// The state that is kept over reloads.
    pub state: State,
    /// Finds the container of a source.
    pub containers: Arc<dyn Containers>,
    /// Recognises the proxy's own listeners, which are never dialled.
    pub own: Arc<dyn OwnAddresses>,
    /// Asks people, and knows what they granted.
    pub ledger: Arc<dyn ApprovalLedger>,
    /// The ports of the MCP addon.
    pub mcp: McpPorts,
    /// How long the steps without their own limit may wait together in one phase: see
    /// [`Chain::new`].
    pub deadline: Duration,
}

/// Builds the chain of all addons, in their order. A reload builds another chain.
pub fn standard_chain(settings: &Settings, ports: Ports) -> Result<Chain, Vec<OrderError>> {
    let (settings, state) = (settings.clone(), ports.state);
    let allowlist = Arc::clone(&settings.allowlist);
    let asks_about_hosts = settings.policy.asks_about_hosts;
    let ledger = Arc::clone(&ports.ledger);
    let reachable = move |container: &Container, host: &Host, port: u16| {
        let granted = || ledger.entry_of(container, host, Some(port), asks_about_hosts);
        let entry = allowlist.find(host).cloned().or_else(granted);
        entry.is_some_and(|entry| entry.ports.contains(&port)) && container.allows(host)
    };
    let is_git = |host: &Host| settings.git.hosts.contains(host);
    let credentials = &settings.credentials.active;
    let credentials = state.token_sources.credentials(credentials, &is_git);
    let trace = state
        .traces
        .sink(settings.collector.as_ref())
        .map(|sink| Link::from(Arc::new(Trace::new(sink))));
    // Observers come first, so that the tracing addon reads the trace context of each request, even
    // if a later addon denies the request. No later addon depends on the observers.
    let observers = [Link::from(state.metrics), Link::from(state.audit)];
    let deciders = [
        // Before all addons that need the flow's principal.
        Link::Identity(Arc::new(Identity::new(ports.containers))),
        // Before anything that costs more than counting, so that a flood is cheap to deny; after
        // identity, since the budget belongs to the lease.
        Link::from(Arc::new(RateLimit::new(
            settings.rate_limit,
            state.buckets,
            state.rejections,
        ))),
        // Before approvals and look-ups that an open circuit would make useless.
        Link::from(Arc::new(CircuitBreaker::new(
            settings.circuit_breaker,
            state.breakers,
        ))),
        // Before credentials: no secret is read for a denied request, and header fields are removed
        // before secrets are added.
        Link::from(Arc::new(
            Policy::new(settings.policy, ports.own).with_ledger(Arc::clone(&ports.ledger)),
        )),
        // After policy, which is cheaper and denies hosts, methods and ambiguous paths.
        Link::from(Arc::new(Github::new(settings.github, state.forge))),
        // After cheaper decisions, since it consults policies and people. No later addon changes an
        // MCP message, so the message is sent as it was judged.
        Link::from(Arc::new(Mcp::new(settings.mcp, ports.mcp))),
        // After policy, so that no push to a host that policy denies is parsed. Before credentials,
        // since the git addon marks the requests that must stay without a credential.
        Link::from(Arc::new(Git::new(
            settings.git,
            Arc::new(reachable),
            state.git_metrics,
        ))),
        // Last: a secret is added only after every other addon has passed the request. The addons
        // see a response in reverse order, so this one redacts the secrets in it before another
        // addon sees it.
        Link::from(Arc::new(Credentials::new(credentials))),
    ];
    let addons = observers.into_iter().chain(trace).chain(deciders);
    let chain = Chain::new(addons.collect(), ports.deadline)?;
    Ok(chain
        .with_allowlist(settings.allowlist)
        .with_ledger(ports.ledger, asks_about_hosts))
}
