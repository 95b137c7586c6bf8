//! Reloads a changed configuration, as a whole or not at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use addons::Settings;
use addons::contract::FileVersion;
use addons::contract::settings::Report;
use addons::mcp::{McpSettings, PoliciesSettings};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts};
use tokio_util::sync::CancellationToken;

use super::approvals;
use super::build::Builder;
use super::private_options::PrivateOptions;
use crate::config::{self, Config, ConfigErrors, FILES, Listen, Profile, ProxyConfig};
use crate::mcp::policy::{BundleFiles, Policies, Unloaded};
use crate::mcp::{Mounts, end_token_agent};
use crate::runtime::pause;
use crate::secret_files;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::telemetry::{HealthFlag, HealthGuard};

/// How often the files are checked for changes. A change must be in force within five seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The sources of the configuration: a directory, the defaults of a profile and the options of
/// `run`.
pub struct Source {
    pub dir: PathBuf,
    pub profile: Profile,
    /// The section `listen` of the files at the start; a reload warns if the section has changed.
    /// The bound addresses may differ from it, for example because of ports on the command line of
    /// `dev`.
    pub listen: Listen,
    /// The data directory at the start, which stays; `None` before.
    pub data_dir: Option<PathBuf>,
    /// The options of `run`; `None` for `serve` and `dev`.
    pub private: Option<PrivateOptions>,
}

impl Source {
    /// Reads the configuration at the start. Returns the sources for reloads, and the
    /// configuration.
    pub fn load(
        dir: PathBuf,
        profile: Profile,
        private: Option<PrivateOptions>,
    ) -> Result<(Self, Config), ConfigErrors> {
        let mut source = Self {
            dir,
            profile,
            listen: Listen::default(),
            data_dir: None,
            private,
        };
        let config = source.reload(|_, _| {})?;
        source.listen = config.proxy.listen.clone();
        source.data_dir = Some(config.proxy.data_dir.clone());
        Ok((source, config))
    }

    fn reload(&self, check: impl FnOnce(&Settings, &Report)) -> Result<Config, ConfigErrors> {
        // The data directory that the files name may be another server's, as for a run.
        let state = |proxy: &ProxyConfig| match self.private {
            Some(_) => None,
            None => Some(self.data_dir.as_ref().unwrap_or(&proxy.data_dir).clone()),
        };
        let mut config = config::load_with_state(&self.dir, self.profile, state, check)?;
        if let Some(private) = &self.private {
            private.apply(&mut config)?;
        }
        Ok(config)
    }
}

/// Builds a snapshot from changed files and puts it into force.
pub struct Reloader {
    source: Source,
    builder: Builder,
    snapshots: Arc<SnapshotStore>,
    /// The MCP servers, which get their settings after every successful reload.
    servers: Arc<Mounts>,
    /// The versions of the policies' files when they were last read: at the start, by a reload
    /// (even one that failed), or by `policies_changed`.
    policy_files: Mutex<BundleFiles>,
    generation: AtomicU64,
    flag: HealthFlag,
    /// Keeps `flag` set; `None` if the last reload failed. The lock serializes reloads.
    current: Mutex<Option<HealthGuard>>,
    reloads: IntCounterVec,
}

impl Reloader {
    pub fn new(
        source: Source,
        builder: Builder,
        snapshots: Arc<SnapshotStore>,
        servers: Arc<Mounts>,
        policy_files: BundleFiles,
        flag: HealthFlag,
        metrics: &prometheus::Registry,
    ) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_config_reloads_total",
            "Reloads of the configuration, by status.",
        );
        let reloads = IntCounterVec::new(opts, &["status"])?;
        metrics.register(Box::new(reloads.clone()))?;
        for status in ["ok", "failed"] {
            reloads.with_label_values(&[status]);
        }
        Ok(Self {
            source,
            builder,
            snapshots,
            servers,
            policy_files: Mutex::new(policy_files),
            generation: AtomicU64::new(1),
            current: Mutex::new(Some(flag.on())),
            flag,
            reloads,
        })
    }

    /// Loads the files and puts the new configuration into force. If there are errors, returns them
    /// and keeps the present configuration.
    pub fn reload(&self) -> Result<(), Vec<String>> {
        let mut current = self.current.lock();
        // Loading blocks this thread, so Tokio moves its other tasks to another thread.
        let loaded = tokio::task::block_in_place(|| self.load());
        let status = if loaded.is_ok() { "ok" } else { "failed" };
        self.reloads.with_label_values(&[status]).inc();
        match loaded {
            Ok(snapshot) => {
                let settings = Arc::clone(&snapshot.config.addons.mcp);
                // Before `replace`, after which long-lived flows are judged again.
                let grants = &self.builder.long_lived.grants;
                grants.learn(Arc::clone(&snapshot.config.learned));
                let tokens = |settings: &McpSettings| settings.tokens.agent.clone();
                let before = tokens(&self.snapshots.current().config.addons.mcp);
                self.snapshots.replace(snapshot);
                if before != tokens(&settings) {
                    let registry = Arc::clone(&self.builder.registry);
                    tokio::spawn(async move { end_token_agent(&registry).await });
                }
                let ledger = &self.builder.long_lived.ledger;
                approvals::end_outdated(ledger, self.snapshots.current());
                // After `replace`: clients that are notified of a changed list request it at once,
                // and must get the list under the new settings.
                self.servers.apply(&settings.servers);
                // Dropping the old guard clears the flag, so the guard is dropped before the flag
                // is set.
                *current = None;
                *current = Some(self.flag.on());
                tracing::info!("the configuration was reloaded");
                Ok(())
            }
            Err(errors) => {
                *current = None;
                for error in &errors {
                    tracing::error!("the configuration was not reloaded: {error}");
                }
                Err(errors)
            }
        }
    }

    /// Loads the policies alone, under the configuration in force. If there are errors, returns them
    /// and keeps the present policies.
    pub fn reload_policies(&self) -> Result<(), Vec<String>> {
        let _reloading = self.current.lock();
        let in_force = self.snapshots.current();
        let snapshot = tokio::task::block_in_place(|| {
            let config = &in_force.config;
            let report = Report::default();
            let policies = self.load_policies(&config.addons.mcp.policies, &report);
            report.finish().map_err(texts)?;
            self.build(Arc::clone(config), policies)
        })?;
        self.snapshots.replace(snapshot);
        let ledger = &self.builder.long_lived.ledger;
        approvals::end_outdated(ledger, self.snapshots.current());
        tracing::info!("the policies were reloaded");
        Ok(())
    }

    fn load(&self) -> Result<Snapshot, Vec<String>> {
        let mut policies = None;
        let check = |settings: &Settings, report: &Report| {
            policies = Some(self.load_policies(&settings.mcp.policies, report));
        };
        let mut config = self.source.reload(check).map_err(texts)?;
        let policies = policies.ok_or_else(|| vec!["the policies were not read".to_owned()])?;
        self.refuse_gone(&config)?;
        self.keep_what_needs_a_restart(&mut config);
        // The log has the warnings of the configuration in force already.
        let known = &self.snapshots.current().config.warnings;
        for warning in config.warnings.iter().filter(|one| !known.contains(one)) {
            tracing::warn!("{warning}");
        }
        self.build(Arc::new(config), policies)
    }

    fn build(&self, config: Arc<Config>, policies: Policies) -> Result<Snapshot, Vec<String>> {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let in_force = self.snapshots.current();
        let built = self
            .builder
            .build(generation, config, Some(&in_force), policies);
        built.map_err(|failure| vec![failure.to_string()])
    }

    /// Loads the policies. A policy that cannot be loaded is reported as an error. The exception is
    /// a policy that is also unloaded in the configuration in force: it must not block other
    /// changes.
    fn load_policies(&self, settings: &PoliciesSettings, report: &Report) -> Policies {
        let data_dir = &self.snapshots.current().config.proxy.data_dir;
        let machine = self.builder.long_lived.policies.commands.machine();
        let mut policies = Policies::load(settings, Some(data_dir), machine);
        *self.policy_files.lock() = std::mem::take(&mut policies.files);
        let known = &self.snapshots.current().unloaded_policies;
        let is_newly_unloaded =
            |policy: &&Unloaded| !known.iter().any(|one| policy.settings.equals(one));
        for policy in policies.unloaded.iter().filter(is_newly_unloaded) {
            report.error(policy.config_error());
        }
        policies
    }

    /// Refuses a configuration that lacks a file of the configuration in force. The file was more
    /// likely lost than deleted on purpose, and the defaults may permit flows that the file denied.
    fn refuse_gone(&self, config: &Config) -> Result<(), Vec<String>> {
        let in_force = &self.snapshots.current().config.files;
        let gone = in_force.iter().filter(|name| !config.files.contains(name));
        let gone: Vec<String> = gone
            .map(|name| {
                format!(
                    "{name} was in force and is gone: put it back, or restart the server to use the defaults"
                )
            })
            .collect();
        match gone.is_empty() {
            true => Ok(()),
            false => Err(gone),
        }
    }

    /// Warns of each setting that differs from the one in force and takes effect only with a
    /// restart. Copies those in force into the new configuration.
    fn keep_what_needs_a_restart(&self, config: &mut Config) {
        let snapshot = self.snapshots.current();
        let in_force = &snapshot.config;
        let audit = in_force.addons.audit != config.addons.audit;
        let (old, new) = (&in_force.proxy, &mut config.proxy);
        let changed = [
            ("listen", self.source.listen != new.listen),
            ("data_dir", old.data_dir != new.data_dir),
            ("certs_dir", old.certs_dir != new.certs_dir),
            ("audit", audit || old.audit != new.audit),
            ("logging", old.logging != new.logging),
            ("admin_uids", old.admin_uids != new.admin_uids),
            ("admin_mode", old.admin_mode != new.admin_mode),
        ];
        for (key, _) in changed.into_iter().filter(|(_, changed)| *changed) {
            tracing::warn!("proxy.yaml: {key} changed; restart the server to apply it");
        }
        new.listen = old.listen.clone();
        new.data_dir.clone_from(&old.data_dir);
        new.certs_dir.clone_from(&old.certs_dir);
        new.audit = old.audit.clone();
        new.logging = old.logging.clone();
        new.admin_uids.clone_from(&old.admin_uids);
        new.admin_mode = old.admin_mode;
        config.addons.audit = in_force.addons.audit;
    }

    /// Reloads whenever a file of the configuration or of a policy changes, until the shutdown.
    pub async fn watch(self: Arc<Self>, shutdown: CancellationToken) {
        let mut seen = self.versions();
        while pause(POLL_INTERVAL, &shutdown).await {
            let now = self.versions();
            if self.policies_changed() || now != seen {
                seen = now;
                // After an error, which `reload` logs, the check `configuration_current` fails
                // until a reload succeeds.
                let _ = self.reload();
            }
        }
    }

    /// A value that changes when a file is written, replaced, added or removed, and when the
    /// directory becomes readable or unreadable.
    fn versions(&self) -> (bool, Vec<Option<FileVersion>>) {
        let version = |name: &&str| {
            let metadata = std::fs::metadata(self.source.dir.join(name)).ok()?;
            Some(secret_files::version(&metadata))
        };
        let is_readable = std::fs::read_dir(&self.source.dir).is_ok();
        (is_readable, FILES.iter().map(version).collect())
    }

    /// Whether a file of a policy has changed since the policies were last loaded, or since the
    /// previous call if that was later.
    fn policies_changed(&self) -> bool {
        let mut files = self.policy_files.lock();
        // Blocks this thread, as in `reload`, since a policy may have thousands of files.
        let now = tokio::task::block_in_place(|| files.read_again());
        let changed = *files != now;
        *files = now;
        changed
    }
}

fn texts(errors: ConfigErrors) -> Vec<String> {
    errors.0.iter().map(ToString::to_string).collect()
}
