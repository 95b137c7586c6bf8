//! Builds a snapshot from a configuration: chain, resolver, TLS roots and policies.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Chain, Containers, OwnAddresses};
use addons::mcp::{McpPorts, NoApprovals, PoliciesSettings};
use addons::{Ports, standard_chain};
use rustls::crypto::CryptoProvider;

use super::failure::Failure;
use crate::config::Config;
use crate::mcp::policy::{PolicyMetrics, PolicyThreads, RegoEvaluator};
use crate::registry::{Registry, RegistryRecords};
use crate::runtime::TokioTasks;
use crate::snapshot::Snapshot;
use crate::tls::UpstreamTls;
use crate::upstream::{NameserverWatch, Network, OwnListeners, Resolver, SocketBudget};

/// Limit on the time that all addons of one phase together may wait, counted from the first hook
/// that waits.
const PHASE_DEADLINE: Duration = Duration::from_secs(10);

/// The parts that all snapshots share: a reload keeps them with their metrics, rate limits,
/// circuits, budgets and tokens.
pub struct LongLived {
    pub addons: addons::State,
    pub sockets: Arc<SocketBudget>,
    /// Limit on the concurrent look-ups at nameservers.
    pub lookups: usize,
    pub nameservers: Arc<NameserverWatch>,
    pub policy_threads: Arc<PolicyThreads>,
    pub policy_metrics: Arc<PolicyMetrics>,
}

/// Builds snapshots from configurations and from the parts that reloads keep.
pub struct Builder {
    pub registry: Arc<Registry>,
    pub own: Arc<OwnListeners>,
    pub provider: Arc<CryptoProvider>,
    pub long_lived: LongLived,
}

impl Builder {
    /// Builds a snapshot. `before` is the snapshot in force; `None` at the start. Its resolver is
    /// reused, with the cache, unless the section `upstream` of proxy.yaml has changed. Fails if
    /// `tls.upstream_ca`, the nameservers or the settings of the chain cannot be used.
    pub fn build(
        &self,
        generation: u64,
        config: Arc<Config>,
        before: Option<&Snapshot>,
    ) -> Result<Snapshot, Failure> {
        let upstream_ca = config.proxy.tls.upstream_ca.as_deref();
        let tls = UpstreamTls::load(upstream_ca, Arc::clone(&self.provider))
            .map_err(|error| Failure::Setting(format!("proxy.yaml: tls.upstream_ca: {error}")))?;
        let upstream = &config.proxy.upstream;
        let resolver = match before {
            Some(before) if before.config.proxy.upstream == *upstream => {
                Arc::clone(&before.network.resolver)
            }
            _ => {
                let resolver = Resolver::new(upstream).map_err(|error| {
                    Failure::Setting(format!("proxy.yaml: upstream.nameservers: {error}"))
                })?;
                let watch = Arc::clone(&self.long_lived.nameservers);
                let resolver = resolver.with_room_for(self.long_lived.lookups);
                Arc::new(resolver.watched_by(watch))
            }
        };
        let (mcp, policies_loaded) = self.mcp_ports(&config.addons.mcp.policies);
        let chain = Arc::new(self.chain(&config, mcp)?);
        let entries = || config.addons.allowlist.values();
        let labels = entries().map(|entry| Arc::clone(&entry.label));
        let state = &self.long_lived.addons;
        state.breakers.name_upstreams(labels);
        let credentials = config.addons.credentials.active.iter();
        state.metrics.create_configured(
            entries().map(|entry| &*entry.label),
            credentials.map(|entry| entry.name.as_str()),
        );
        let network = Network {
            generation,
            chain,
            resolver,
            sockets: Arc::clone(&self.long_lived.sockets),
            tls,
            connect_timeout: config.proxy.upstream.connect_timeout,
        };
        Ok(Snapshot {
            containers: Arc::clone(&self.registry) as Arc<dyn Containers>,
            network: Arc::new(network),
            policies_loaded,
            config,
        })
    }

    fn chain(&self, config: &Config, mcp: McpPorts) -> Result<Chain, Failure> {
        let ports = Ports {
            state: self.long_lived.addons.clone(),
            containers: Arc::clone(&self.registry) as _,
            own: Arc::clone(&self.own) as Arc<dyn OwnAddresses>,
            mcp,
            deadline: PHASE_DEADLINE,
        };
        standard_chain(&config.addons, ports).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Failure::Internal(lines.join("\n"))
        })
    }

    /// Loads the policy bundles. Returns the ports of the MCP addons, and whether all bundles were
    /// loaded. Logs each bundle that could not be loaded. Messages that such a bundle would judge
    /// are denied, unless `policies.on_unavailable` is `allow`.
    fn mcp_ports(&self, policies: &PoliciesSettings) -> (McpPorts, bool) {
        let threads = Arc::clone(&self.long_lived.policy_threads);
        let metrics = Arc::clone(&self.long_lived.policy_metrics);
        let (evaluator, unloaded) = RegoEvaluator::load(policies, threads, metrics);
        let all_loaded = unloaded.is_empty();
        for bundle in unloaded {
            let (id, error) = (&bundle.settings.id, &bundle.error);
            tracing::error!(bundle = %id, "mcp.yaml: policies.bundles: {error}");
        }
        let ports = McpPorts {
            evaluator: Arc::new(evaluator),
            records: Arc::new(RegistryRecords(Arc::clone(&self.registry))),
            approvals: Arc::new(NoApprovals),
            tasks: Arc::new(TokioTasks),
        };
        (ports, all_loaded)
    }
}
