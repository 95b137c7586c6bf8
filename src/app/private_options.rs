//! The options of `run` that change the configuration of its appliance.

use std::path::PathBuf;
use std::sync::Arc;

use addons::policy::{extend_allowlist, parse_entry};
use serde::{Deserialize, Serialize};

use crate::config::{self, Config, ConfigErrors, Listen, Profile};

/// The options of the appliance of one `run`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PrivateOptions {
    /// The directory of the state, deleted when the appliance ends.
    pub state: PathBuf,
    /// The directory of the configuration files.
    pub config: PathBuf,
    /// Hosts that are allowed besides those of the files: `name` or `name:port`.
    pub allow: Vec<String>,
    /// A directory with a `credentials.yaml`. Its entries are added, except those whose name or
    /// host has an entry in the configuration.
    pub logins: Option<PathBuf>,
    /// The path of the audit log, which outlives the appliance.
    pub audit: PathBuf,
}

impl PrivateOptions {
    /// The path of the admin socket.
    pub fn socket(&self) -> PathBuf {
        self.state.join("api.sock")
    }

    /// Applies the options to a configuration: replaces listeners and paths, adds hosts and
    /// credentials.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), ConfigErrors> {
        config.proxy.listen = Listen {
            proxy: Vec::new(),
            dns: Vec::new(),
            mcp: Vec::new(),
            admin: self.socket(),
        };
        config.proxy.admin_mode = 0o600;
        config.proxy.admin_uids = Vec::new();
        config.proxy.data_dir = self.state.join("data");
        config.proxy.certs_dir = self.state.join("certs");
        config.proxy.audit.path.clone_from(&self.audit);
        let mut allowlist = (*config.addons.allowlist).clone();
        // Each was checked when the command line was parsed.
        for entry in self.allow.iter().filter_map(|host| parse_entry(host).ok()) {
            extend_allowlist(&mut allowlist, entry);
        }
        config.addons.allowlist = Arc::new(allowlist);
        if let Some(logins) = &self.logins {
            let logins = config::load(logins, Profile::Serve)?;
            config.addons.credentials.extend(logins.addons.credentials);
        }
        Ok(())
    }
}
