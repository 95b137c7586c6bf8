//! What the command line of `run` says beside the configuration files.

use std::path::PathBuf;
use std::sync::Arc;

use addons::policy::{extend_allowlist, parse_entry};
use serde::{Deserialize, Serialize};

use crate::config::{self, Config, ConfigErrors, Listen, Profile};

/// What an appliance of one `run` is started with.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PrivateOptions {
    /// Directory of the state, which ends with the appliance.
    pub state: PathBuf,
    /// Directory of the configuration files.
    pub config: PathBuf,
    /// Hosts that are allowed besides those of the files: `name` or `name:port`.
    pub allow: Vec<String>,
    /// Directory with a `credentials.yaml` whose entries are added for hosts that have none.
    pub logins: Option<PathBuf>,
    /// The audit log, which stays.
    pub audit: PathBuf,
}

impl PrivateOptions {
    /// The admin socket.
    pub fn socket(&self) -> PathBuf {
        self.state.join("api.sock")
    }

    /// Puts what the command line says in the place of what the files say, or beside it.
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
        // Each was read when the command line was.
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
