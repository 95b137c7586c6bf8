//! The options of `run` that change the configuration of its appliance.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::Host;
use addons::policy::{LOCALHOST, extend_allowlist, parse_entry};
use serde::{Deserialize, Serialize};

use crate::config::{self, Config, ConfigErrors, Listen, Profile, StaticAddress};

/// The options that `run` passes to its appliance.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PrivateOptions {
    /// The directory of the appliance's state, deleted when the appliance ends.
    pub state: PathBuf,
    /// The directory of the configuration files.
    pub config: PathBuf,
    /// Host patterns that are added to the allowlist: `name`, or `name:port` for one port only.
    pub allow: Vec<String>,
    /// Whether a person is asked about unlisted hosts, whatever the configuration says.
    pub ask: bool,
    /// Ports of this machine's loopback that are allowed, by the names `localhost` and `127.0.0.1`.
    pub host_ports: Vec<u16>,
    /// A directory with a `credentials.yaml`, whose active entries are added to those of the
    /// configuration. An entry is left out if an active entry of the configuration has the same
    /// name or one of the same hosts.
    pub logins: Option<PathBuf>,
    /// The path of the audit log, which outlives the appliance.
    pub audit: PathBuf,
}

/// The admin socket of the appliance with this state directory.
pub fn socket_in(state: &Path) -> PathBuf {
    state.join("api.sock")
}

impl PrivateOptions {
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.state)
    }

    /// Applies the options to a configuration: replaces listeners and paths, and adds hosts and
    /// credentials. Fails if the directory `logins` cannot be read or has an invalid file.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), ConfigErrors> {
        config.proxy.listen = Listen {
            admin: self.socket(),
            ..Listen::default()
        };
        config.proxy.admin_mode = 0o600;
        config.proxy.admin_uids = Vec::new();
        config.proxy.data_dir = self.state.join("data");
        config.proxy.certs_dir = self.state.join("certs");
        config.proxy.audit.path.clone_from(&self.audit);
        config.addons.policy.asks_about_hosts |= self.ask;
        // The state ends with the run.
        config.proxy.approvals.learned = false;
        let mut allowlist = (*config.addons.allowlist).clone();
        // The command line was already checked with `parse_entry`, so no host is skipped here.
        let loopback = Ipv4Addr::LOCALHOST;
        let host_ports = self.host_ports.iter();
        let host_ports = host_ports
            .flat_map(|port| [format!("{LOCALHOST}:{port}"), format!("{loopback}:{port}")]);
        let all: Vec<String> = self.allow.iter().cloned().chain(host_ports).collect();
        for entry in all.iter().filter_map(|host| parse_entry(host).ok()) {
            extend_allowlist(&mut allowlist, entry);
        }
        if !self.host_ports.is_empty() {
            config.addons.policy.host_ports.clone_from(&self.host_ports);
            let answer = StaticAddress {
                address: loopback.into(),
                port: None,
            };
            let mut hosts = (*config.proxy.upstream.hosts).clone();
            hosts.insert(Host::Name(LOCALHOST.into()), answer);
            config.proxy.upstream.hosts = Arc::new(hosts);
        }
        config.addons.allowlist = Arc::new(allowlist);
        if let Some(logins) = &self.logins {
            let logins = config::load(logins, Profile::Serve)?;
            config.addons.credentials.extend(logins.addons.credentials);
        }
        Ok(())
    }
}
