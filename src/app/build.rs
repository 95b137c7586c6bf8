//! Builds a snapshot from a configuration: chain, resolver, TLS roots and policies.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{ApprovalLedger, Chain, Containers, GRANTED, OwnAddresses};
use addons::git::LFS_CREDENTIAL;
use addons::mcp::{McpPorts, OnUnavailable};
use addons::{Ports, standard_chain};
use rustls::crypto::CryptoProvider;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use crate::approvals::{Ledger, LedgerPort, LiveGrants};
use crate::config::Config;
use crate::mcp::policy::{Policies, PolicyParts, Unloaded};
use crate::mcp::{DefinitionFile, StoredDefinitions};
use crate::registry::{Registry, RegistryRecords};
use crate::runtime::TokioTasks;
use crate::snapshot::Snapshot;
use crate::tls::UpstreamTls;
use crate::upstream::{NameserverWatch, Network, OwnListeners, Resolver, SocketBudget};

/// Time limit for the waits of all addons in one phase together, counted from the first hook that
/// waits. The chain denies a flow that exceeds it.
const PHASE_DEADLINE: Duration = Duration::from_secs(10);

/// The parts that all snapshots share: a reload keeps them with their metrics, rate limits,
/// circuits, budgets and tokens.
pub struct LongLived {
    pub addons: addons::State,
    pub sockets: Arc<SocketBudget>,
    /// Limit on the concurrent look-ups at nameservers.
    pub lookups: usize,
    pub nameservers: Arc<NameserverWatch>,
    pub policies: PolicyParts,
    pub ledger: Arc<Ledger>,
    pub grants: Arc<LiveGrants>,
    /// The accepted definitions of tools.
    pub definitions: Arc<DefinitionFile>,
    /// Cancelled when the server begins to stop: nobody waits for a person then.
    pub stopping: CancellationToken,
}

/// Builds snapshots from configurations and from the parts that reloads keep.
pub struct Builder {
    pub registry: Arc<Registry>,
    pub own: Arc<OwnListeners>,
    pub provider: Arc<CryptoProvider>,
    pub long_lived: LongLived,
}

impl Builder {
    /// Builds a snapshot. `before` is the snapshot in force; `None` at the start. The resolver of
    /// `before` is reused, with the cache, unless the section `upstream` of proxy.yaml has changed.
    /// `policies` are those of `config`; those that could not be loaded are logged. Fails if
    /// `tls.upstream_ca`, the nameservers or the settings of the chain cannot be used.
    pub fn build(
        &self,
        generation: u64,
        config: Arc<Config>,
        before: Option<&Snapshot>,
        policies: Policies,
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
        for Unloaded { settings, error } in &policies.unloaded {
            tracing::error!(
                bundle = settings.id(),
                "mcp.yaml: {}: {error}",
                settings.key()
            );
        }
        let unloaded = policies.unloaded.iter();
        let unloaded_policies = unloaded.map(|policy| policy.settings.clone()).collect();
        let call_policies = policies.revision("tools/call");
        let policy = Arc::clone(&policies.text);
        let ledger: Arc<dyn ApprovalLedger> = Arc::new(LedgerPort {
            ledger: Arc::clone(&self.long_lived.ledger),
            grants: Arc::clone(&self.long_lived.grants),
            ttl: config.proxy.approvals.ttl,
            stopping: self.long_lived.stopping.clone(),
        });
        let on_unavailable = config.addons.mcp.policies.on_unavailable;
        let mcp = self.mcp_ports(policies, on_unavailable, Arc::clone(&ledger));
        let chain = Arc::new(self.chain(&config, ledger, mcp)?);
        let entries = || config.addons.allowlist.values();
        let labels = entries().map(|entry| Arc::clone(&entry.label));
        let asks = config.addons.policy.asks_about_hosts;
        let granted = (asks || !config.learned.is_empty()).then_some(GRANTED);
        let state = &self.long_lived.addons;
        state
            .breakers
            .name_upstreams(labels.chain(granted.map(Into::into)));
        let credentials = config.addons.credentials.active.iter();
        let credentials = credentials.map(|entry| entry.name.as_str());
        state.metrics.create_configured(
            entries().map(|entry| &*entry.label).chain(granted),
            credentials.chain([LFS_CREDENTIAL]),
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
            unloaded_policies,
            call_policies,
            policy,
            config,
        })
    }

    fn chain(
        &self,
        config: &Config,
        ledger: Arc<dyn ApprovalLedger>,
        mcp: McpPorts,
    ) -> Result<Chain, Failure> {
        let ports = Ports {
            state: self.long_lived.addons.clone(),
            containers: Arc::clone(&self.registry) as _,
            own: Arc::clone(&self.own) as Arc<dyn OwnAddresses>,
            ledger,
            mcp,
            deadline: PHASE_DEADLINE,
        };
        standard_chain(&config.addons, ports).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Failure::Internal(lines.join("\n"))
        })
    }

    /// Builds the engine's implementations of the MCP addon's ports. If a policy could not be
    /// loaded, the messages that it would judge are denied, unless `on_unavailable` is `Allow`.
    fn mcp_ports(
        &self,
        policies: Policies,
        on_unavailable: OnUnavailable,
        ledger: Arc<dyn ApprovalLedger>,
    ) -> McpPorts {
        McpPorts {
            evaluator: policies.evaluator(on_unavailable, &self.long_lived.policies),
            records: Arc::new(RegistryRecords(Arc::clone(&self.registry))),
            ledger,
            accepted: Arc::new(StoredDefinitions(Arc::clone(&self.long_lived.definitions))),
            tasks: Arc::new(TokioTasks),
        }
    }
}
