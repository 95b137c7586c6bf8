//! Reloads a changed configuration, all of it or nothing.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts};
use tokio_util::sync::CancellationToken;

use super::build::Builder;
use super::private_options::PrivateOptions;
use crate::config::{self, Config, ConfigErrors, FILES, Listen, Profile};
use crate::mcp::Mounts;
use crate::runtime::pause;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::telemetry::{HealthFlag, HealthGuard};

/// How often the files are checked for changes, which are in force within five seconds.
const LOOK: Duration = Duration::from_secs(2);

/// The metadata of a file, which change when it is written or replaced.
#[derive(PartialEq, Eq)]
struct Version {
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

/// The source of the configuration: a directory, defaults and the command line.
pub struct Source {
    pub dir: PathBuf,
    pub profile: Profile,
    /// The listeners in the files at start, to detect a change; `dev` may listen on other ports.
    pub listen: Listen,
    /// The options of the command line of `run`.
    pub private: Option<PrivateOptions>,
}

impl Source {
    /// Reads the configuration for the first time.
    pub fn load(
        dir: PathBuf,
        profile: Profile,
        private: Option<PrivateOptions>,
    ) -> Result<(Self, Config), ConfigErrors> {
        let mut source = Self {
            dir,
            profile,
            listen: Listen::default(),
            private,
        };
        let config = source.reload()?;
        source.listen = config.proxy.listen.clone();
        Ok((source, config))
    }

    fn reload(&self) -> Result<Config, ConfigErrors> {
        let mut config = config::load(&self.dir, self.profile)?;
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
    generation: AtomicU64,
    flag: HealthFlag,
    /// Held while the configuration in force is that of the files. The lock also serializes
    /// reloads.
    current: Mutex<Option<HealthGuard>>,
    reloads: IntCounterVec,
    servers: Option<Arc<Mounts>>,
}

impl Reloader {
    pub fn new(
        source: Source,
        builder: Builder,
        snapshots: Arc<SnapshotStore>,
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
            generation: AtomicU64::new(1),
            current: Mutex::new(Some(flag.on())),
            flag,
            reloads,
            servers: None,
        })
    }

    /// Applies every new configuration to these MCP servers as well.
    #[must_use]
    pub fn with_servers(mut self, servers: Arc<Mounts>) -> Self {
        self.servers = Some(servers);
        self
    }

    /// Loads the files. If there are errors, returns all of them and changes nothing.
    pub fn reload(&self) -> Result<(), Vec<String>> {
        let mut current = self.current.lock();
        // Loading blocks on files and certificates; other tasks move to other threads meanwhile.
        let loaded = tokio::task::block_in_place(|| self.load());
        let status = if loaded.is_ok() { "ok" } else { "failed" };
        self.reloads.with_label_values(&[status]).inc();
        match loaded {
            Ok(snapshot) => {
                let settings = Arc::clone(&snapshot.config.addons.mcp);
                self.snapshots.replace(snapshot);
                // After the replacement: clients that are notified of changed lists must get the
                // new settings.
                if let Some(servers) = &self.servers {
                    servers.apply(&settings.servers);
                }
                // Dropping the old guard clears the flag, so it is dropped before the flag is set.
                *current = None;
                *current = Some(self.flag.on());
                tracing::info!("the configuration was reloaded");
                Ok(())
            }
            Err(errors) => {
                *current = None;
                for error in &errors {
                    tracing::error!("not reloaded: {error}");
                }
                Err(errors)
            }
        }
    }

    fn load(&self) -> Result<Snapshot, Vec<String>> {
        let texts =
            |errors: ConfigErrors| errors.0.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut config = self.source.reload().map_err(texts)?;
        self.refuse_gone(&config)?;
        self.keep_what_needs_a_restart(&mut config);
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.builder
            .build(
                generation,
                Arc::new(config),
                Some(&self.snapshots.current()),
            )
            .map_err(|failure| vec![failure.to_string()])
    }

    /// Refuses a configuration without a file that is in force: it was more likely lost than
    /// deleted on purpose, and the defaults may permit what it denied.
    fn refuse_gone(&self, config: &Config) -> Result<(), Vec<String>> {
        let in_force = &self.snapshots.current().config.files;
        let gone = in_force.iter().filter(|name| !config.files.contains(name));
        let gone: Vec<String> = gone
            .map(|name| {
                format!(
                    "{name}: it was in force and is gone: put it back, or restart to do without it"
                )
            })
            .collect();
        match gone.is_empty() {
            true => Ok(()),
            false => Err(gone),
        }
    }

    /// Keeps the present listeners and paths, which change only with a restart, and warns of
    /// changes to them.
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
            tracing::warn!("proxy.yaml: {key} changed; it takes effect with a restart");
        }
        new.listen = old.listen.clone();
        new.data_dir.clone_from(&old.data_dir);
        new.certs_dir.clone_from(&old.certs_dir);
        new.audit = old.audit.clone();
        config.addons.audit = in_force.addons.audit;
    }

    /// Reloads whenever a file changes, until the shutdown.
    pub async fn watch(self: Arc<Self>, shutdown: CancellationToken) {
        let mut seen = self.versions();
        while pause(LOOK, &shutdown).await {
            let now = self.versions();
            if now != seen {
                seen = now;
                // Errors are logged and shown by the health check; the old configuration stays.
                let _ = self.reload();
            }
        }
    }

    /// A value that changes when a file is written, replaced, added or removed, or when the
    /// directory becomes unreadable.
    fn versions(&self) -> (bool, Vec<Option<Version>>) {
        let version = |name: &&str| {
            let metadata = std::fs::metadata(self.source.dir.join(name)).ok()?;
            Some(Version {
                inode: metadata.ino(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
                bytes: metadata.len(),
            })
        };
        let is_readable = std::fs::read_dir(&self.source.dir).is_ok();
        (is_readable, FILES.iter().map(version).collect())
    }
}
