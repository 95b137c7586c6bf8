//! The health of all parts, for health checks and metrics.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts};

use addons::contract::Containers;

use crate::admin::{Check, Health};
use crate::mcp::policy::PolicyKeeper;
use crate::mcp::{Core, MountState, Mounts};
use crate::registry::Registry;
use crate::telemetry::HealthFlag;
use crate::upstream::NameserverWatch;

/// The parts of the server that health checks read.
#[derive(Clone)]
pub struct Checks {
    pub proxy: HealthFlag,
    pub dns: HealthFlag,
    /// `None` if the MCP gateway is off, because `listen.mcp` is empty.
    pub mcp: Option<HealthFlag>,
    /// The gateway's policies and servers.
    pub mcp_core: Arc<Core>,
    /// The policy that people set.
    pub policies: Arc<PolicyKeeper>,
    pub audit: HealthFlag,
    pub configuration: HealthFlag,
    pub registry: Arc<Registry>,
    pub addons: addons::State,
    pub nameservers: Arc<NameserverWatch>,
}

impl Checks {
    /// Runs all checks. Only the checks of listeners, registry and chain are critical.
    pub fn health(&self) -> Health {
        let check = |name, ok, critical| Check { name, ok, critical };
        let mut checks = vec![
            check("proxy_listening", self.proxy.is_on(), true),
            check("dns_listening", self.dns.is_on(), true),
            check("registry_accessible", self.registry.available(), true),
            // Always true: the server does not start without a chain.
            check("addons_loaded", true, true),
            check("audit_writable", self.audit.is_on(), false),
            check("configuration_current", self.configuration.is_on(), false),
            check("circuits_closed", self.addons.breakers.all_closed(), false),
            check(
                "oauth_logins_valid",
                self.addons.token_sources.are_valid(),
                false,
            ),
            check("upstream_dns_answers", self.nameservers.is_well(), false),
        ];
        if let Some(mcp) = &self.mcp {
            let (loaded, mounts) = (self.mcp_core.policies_loaded(), self.mcp_core.mounts());
            checks.extend([
                check("mcp_listening", mcp.is_on(), true),
                check("mcp_policies_loaded", loaded, false),
                check(
                    "mcp_stored_policy_loaded",
                    self.policies.is_settled()
                        && self.policies.current().policy.is_stored_policy_loaded(),
                    false,
                ),
                check("mcp_servers_alive", servers_are_alive(mounts), false),
            ]);
        }
        Health(checks)
    }
}

/// Whether no MCP server is in the state [`MountState::Dead`].
fn servers_are_alive(servers: &Mounts) -> bool {
    let mut servers = servers.health(None).into_iter();
    servers.all(|server| server.state != MountState::Dead)
}

/// Exports the checks and the number of registered containers as metrics, read at each scrape.
pub struct HealthCollector {
    checks: Checks,
    health: IntGaugeVec,
    containers: IntGauge,
}

impl HealthCollector {
    pub fn new(checks: Checks) -> prometheus::Result<Self> {
        let health = Opts::new("proxy_health", "Health checks: 1 passes, 0 fails.");
        let containers = Opts::new(
            "proxy_registered_containers",
            "Containers with a live lease.",
        );
        Ok(Self {
            checks,
            health: IntGaugeVec::new(health, &["check"])?,
            containers: IntGauge::with_opts(containers)?,
        })
    }
}

impl Collector for HealthCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.health.desc(), self.containers.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for check in self.checks.health().0 {
            self.health
                .with_label_values(&[check.name])
                .set(i64::from(check.ok));
        }
        self.containers
            .set(i64::try_from(self.checks.registry.count()).unwrap_or(i64::MAX));
        [self.health.collect(), self.containers.collect()].concat()
    }
}
