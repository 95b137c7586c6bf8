//! The chain that every flow passes, and the contract it stands on.
//!
//! Decisions only: nothing in this crate opens a socket, a database or a TLS session. What an
//! addon needs from outside is a small trait that the engine implements.
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
pub mod mcp;
pub mod observe;
pub mod policy;
pub mod rate_limit;
pub mod raw_json;
pub mod shards;
pub mod strict_json;

#[cfg(test)]
#[path = "../tests/fixtures/mod.rs"]
mod fixtures;

use std::sync::Arc;
use std::time::Duration;

use circuit_breaker::{Breakers, CircuitBreaker, CircuitBreakerSettings};
use contract::settings::{Files, Passthrough};
use contract::{
    Allowlist, Chain, Container, Containers, Host, Link, OrderError, OwnAddresses, SecretFiles,
};
use credentials::{CredentialSettings, Credentials, TokenSources};
use git::{Git, GitMetrics, GitSettings};
use github::{Forge, Github, GithubSettings};
use identity::Identity;
use mcp::{Mcp, McpPorts, McpSettings};
use observe::{Audit, AuditSettings, Collector, Metrics, Trace, Traces};
use policy::{Policy, PolicySettings};
use rate_limit::{RateBuckets, RateLimit, RateLimitSettings, Rejections};

/// What the files say to the addons.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where containers may go.
    pub allowlist: Arc<Allowlist>,
    /// What one container may write to the audit log.
    pub audit: AuditSettings,
    /// What a lease may ask upstreams and the resolver for.
    pub rate_limit: RateLimitSettings,
    /// When an upstream is left alone.
    pub circuit_breaker: CircuitBreakerSettings,
    /// The operator's rules, and which addresses may be dialled.
    pub policy: PolicySettings,
    /// What may be done through the APIs of GitHub.
    pub github: GithubSettings,
    /// Which repositories, and what may be pushed to them.
    pub git: GitSettings,
    /// The secrets to inject.
    pub credentials: CredentialSettings,
    /// The MCP servers, and the rules for their tools.
    pub mcp: Arc<McpSettings>,
    /// Where spans go, if anywhere.
    pub collector: Option<Collector>,
}

impl Settings {
    /// Reads the settings of every addon. What is wrong is in the report of the files. Looks at
    /// the files that hold secrets, so it may block.
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
            mcp: Arc::new(McpSettings::read(files)),
            collector: Collector::read(files),
        }
    }

    /// Reports what is wrong between files, each of which is right by itself.
    pub fn check(&self, files: &Files<'_>) {
        let passthrough = Passthrough::read(files);
        self.policy.check(&passthrough);
        GitSettings::check(files, &passthrough);
        self.credentials.check(files, &passthrough, &self.allowlist);
    }
}

/// What the addons need from outside, and what outlives a chain: made once and handed to each.
pub struct Ports {
    /// Counts across reloads.
    pub metrics: Arc<Metrics>,
    /// Writes the audit log across reloads.
    pub audit: Arc<Audit>,
    /// Exports spans across reloads.
    pub traces: Arc<Traces>,
    /// Counts git operations across reloads.
    pub git_metrics: Arc<GitMetrics>,
    /// Who is at a source.
    pub containers: Arc<dyn Containers>,
    /// Knows every bucket of the rate limits across reloads.
    pub buckets: RateBuckets,
    /// Counts the flows over a limit across reloads.
    pub rejections: Rejections,
    /// Remembers the circuits across reloads.
    pub breakers: Breakers,
    /// Tells our own listeners, which are never dialled.
    pub own: Arc<dyn OwnAddresses>,
    /// Resolves numbers and node ids of GitHub.
    pub forge: Arc<dyn Forge>,
    /// Keeps logins and tokens across reloads.
    pub token_sources: Arc<TokenSources>,
    /// What the judge of MCP messages asks and records.
    pub mcp: McpPorts,
    /// How long a phase may take from the moment when an addon waits.
    pub deadline: Duration,
}

/// The chain, in its order. A reload builds another one.
pub fn standard_chain(settings: &Settings, ports: Ports) -> Result<Chain, Vec<OrderError>> {
    let settings = settings.clone();
    let allowlist = Arc::clone(&settings.allowlist);
    let reachable = move |container: &Container, host: &Host, port: u16| {
        let entry = allowlist.find(host);
        entry.is_some_and(|entry| entry.ports.contains(&port)) && container.allows(host)
    };
    let is_git = |host: &Host| settings.git.hosts.contains(host);
    let credentials = &settings.credentials.active;
    let credentials = ports.token_sources.credentials(credentials, &is_git);
    let trace = ports
        .traces
        .sink(settings.collector.as_ref())
        .map(|sink| Link::from(Arc::new(Trace::new(sink))));
    // Observers stand in front, so that they are told of a flow whichever addon denies it.
    // Nothing behind them depends on them.
    let observers = [Link::from(ports.metrics), Link::from(ports.audit)];
    let deciders = [
        // Everything behind it asks who the flow is for.
        Link::Identity(Arc::new(Identity::new(ports.containers))),
        // Before anything that costs more than counting, so that a flood is cheap to turn away;
        // behind identity, because the budget belongs to the lease.
        Link::from(Arc::new(RateLimit::new(
            settings.rate_limit,
            ports.buckets,
            ports.rejections,
        ))),
        // Before a person is asked or anything is looked up in vain.
        Link::from(Arc::new(CircuitBreaker::new(
            settings.circuit_breaker,
            ports.breakers,
        ))),
        // Says no before a secret is touched. It removes fields, so it must be done when secrets
        // are added.
        Link::from(Arc::new(Policy::new(settings.policy, ports.own))),
        // Behind policy, whose normal form of paths it judges.
        Link::from(Arc::new(Github::new(settings.github, ports.forge))),
        // Behind what is cheaper to decide, for policies and people are asked here. Nothing behind
        // it changes a message, so what was judged is what is sent.
        Link::from(Arc::new(Mcp::new(settings.mcp, ports.mcp))),
        // Behind policy, for what may not be reached at all needs no reading of packets. It says
        // which requests must stay without a credential.
        Link::from(Arc::new(Git::new(
            settings.git,
            Arc::new(reachable),
            ports.git_metrics,
        ))),
        // Last: a secret is added only after every other addon passed. Responses run backwards,
        // so it is also the first to see one, and no other addon sees an echo.
        Link::from(Arc::new(Credentials::new(credentials))),
    ];
    let addons = observers.into_iter().chain(trace).chain(deciders);
    let chain = Chain::new(addons.collect(), ports.deadline)?;
    Ok(chain.with_allowlist(settings.allowlist))
}
