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
pub mod identity;
pub mod observe;
pub mod policy;
pub mod rate_limit;
pub mod shards;
pub mod strict_json;

#[cfg(test)]
#[path = "../tests/fixtures/mod.rs"]
mod fixtures;
mod fold;

use std::sync::Arc;
use std::time::Duration;

use circuit_breaker::{CircuitBreaker, CircuitBreakerSettings};
use contract::{Addon, Chain, Containers, OrderError};
use credentials::{Credential, Credentials};
use git::{Git, GitSettings};
use github::{Github, GithubSettings};
use identity::Identity;
use observe::{Audit, Metrics, SpanSink, Trace};
use policy::{Policy, PolicySettings};
use rate_limit::{RateLimit, RateLimitSettings};

/// What the standard chain is made from.
pub struct Parts {
    /// Counts across reloads, so it is made once and handed in.
    pub metrics: Arc<Metrics>,
    /// Budgets across reloads, so it is made once and handed in.
    pub audit: Arc<Audit>,
    /// Where spans go, if anywhere.
    pub spans: Option<Arc<dyn SpanSink>>,
    /// Who is at a source.
    pub containers: Arc<dyn Containers>,
    /// What a lease may ask upstreams and the resolver for.
    pub rate_limits: RateLimitSettings,
    /// When an upstream is left alone.
    pub circuit_breakers: CircuitBreakerSettings,
    /// Where containers may go.
    pub policy: PolicySettings,
    /// What may be done through the APIs of GitHub.
    pub github: GithubSettings,
    /// Which repositories, and what may be pushed to them.
    pub git: GitSettings,
    /// The secrets to inject.
    pub credentials: Vec<Credential>,
    /// How long a phase may take from the moment when an addon waits.
    pub deadline: Duration,
}

/// The chain, in its order. A reload builds another one.
pub fn standard_chain(parts: Parts) -> Result<Chain, Vec<OrderError>> {
    let trace = parts
        .spans
        .map(|sink| Arc::new(Trace::new(sink)) as Arc<dyn Addon>);
    // Observers stand in front, so that they are told of a flow whoever denies it. Nothing behind
    // them depends on them.
    let observers = [parts.metrics as Arc<dyn Addon>, parts.audit];
    let deciders: [Arc<dyn Addon>; 7] = [
        // Everything behind it asks who the flow is for.
        Arc::new(Identity::new(parts.containers)),
        // Before anything that costs more than counting, so that a flood is cheap to turn away;
        // behind identity, because the budget belongs to the lease.
        Arc::new(RateLimit::new(parts.rate_limits)),
        // Before anybody is asked or anything is looked up in vain.
        Arc::new(CircuitBreaker::new(parts.circuit_breakers)),
        // Says no before a secret is touched. Its cleaning of fields must be done when secrets
        // are added, lest it remove one.
        Arc::new(Policy::new(parts.policy)),
        // Behind policy, whose normal form of paths it judges.
        Arc::new(Github::new(parts.github)),
        // Behind policy, for what may not be reached at all needs no reading of packets. It says
        // which requests must stay without a credential.
        Arc::new(Git::new(parts.git)),
        // Last: a secret is added only after every other addon passed. Responses run backwards,
        // so it is also the first to see one, and no other addon sees an echo.
        Arc::new(Credentials::new(parts.credentials)),
    ];
    let addons = observers.into_iter().chain(trace).chain(deciders);
    Chain::new(addons.collect(), parts.deadline)
}
