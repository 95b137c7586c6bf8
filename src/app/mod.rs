//! Builds the server from its configuration, runs it and drains it.

mod approvals;
mod build;
mod control;
mod data_dir;
mod descriptors;
mod dev;
mod egress;
mod explain;
mod failure;
mod health;
mod learning;
mod listeners;
mod mcp;
mod operator;
mod private;
mod private_options;
mod reload;
mod sandbox;
mod signals;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use addons::contract::SystemPorts;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use dev::DevOptions;
pub use failure::Failure;
pub use private::{PrivateStart, run_private};
pub use private_options::{PrivateOptions, socket_in};

use crate::admin::{self, AdminState};
use crate::approvals::{ApprovalMetrics, Learner, Ledger, LiveGrants, Notifier};
use crate::config::{Config, DEV_STATE, Profile};
use crate::dns;
use crate::http::{Inspection, Service};
use crate::ingress::{self, Engine, ListenerKind, Workers};
use crate::mcp::policy::{
    CommandRunner, Policies, PolicyKeeper, PolicyMetrics, PolicyParts, PolicyThreads,
};
use crate::mcp::{DefinitionFile, PolicyDesk, Spawner};
use crate::registry::Registry;
use crate::registry::sqlite::{FILE_NAME, SqliteStore};
use crate::runtime::{TokioTasks, pause};
use crate::sandbox::SELF_EXE;
use crate::secret_files::FilesOnDisk;
use crate::snapshot::SnapshotStore;
use crate::telemetry::{AuditLog, HealthFlag, init_logging};
use crate::tls::{self, Authority, CaFiles};
use crate::upstream::{NameserverWatch, OutboundClient, OwnListeners, SocketBudget};
use build::{Builder, LongLived};
use data_dir::DataDir;
use descriptors::DescriptorShares;
use egress::EgressListeners;
use health::{Checks, HealthCollector};
use listeners::{Listeners, absolute_socket_directory, socket_directory};
use operator::Operator;
use reload::{Reloader, Source};
use signals::Signals;

/// How often the interception CA is checked for a rotation.
const CA_REFRESH: Duration = Duration::from_secs(60);
/// Time limit for each step of the drain that follows the end of the flows. The step that stops MCP
/// servers gets the rest of `shutdown_timeout` instead if that is longer.
const DRAIN_STEP_LIMIT: Duration = Duration::from_secs(1);
/// How often folded audit lines (one line for several flows) are written if they are due.
const AUDIT_INTERVAL: Duration = Duration::from_secs(1);
/// How often idle buckets and circuits are freed.
const FREE_IDLE_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Runs the server until SIGTERM or SIGINT, then drains it. With `dev`, registers the container
/// `local` and prints commands to try. Returns an error if the server cannot start or cannot handle
/// signals. The caller's runtime runs all tasks except the connections of sandboxes: [`Workers`]
/// serves the connections on its own threads.
pub async fn run(config_dir: PathBuf, dev: Option<DevOptions>) -> Result<(), Failure> {
    let profile = if dev.is_some() {
        Profile::Dev
    } else {
        Profile::Serve
    };
    let (source, mut config) = Source::load(config_dir, profile, None)?;
    init_logging(&config.proxy.logging).map_err(Failure::Setting)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    descriptors::raise_limit();
    descriptors::warn_if_low(config.proxy.limits.max_connections);
    // The listeners are bound before the data directory is opened. If another server is running,
    // the error then names the address that is in use.
    let dns_may_move = dev.as_ref().is_some_and(|dev| dev.dns_port.is_none());
    if let Some(dev) = &dev {
        dev.set_ports(&mut config.proxy.listen);
        let directories = [
            config.proxy.data_dir.as_path(),
            socket_directory(&config.proxy.listen),
        ];
        for directory in directories
            .iter()
            .filter(|path| path.starts_with(DEV_STATE))
        {
            data_dir::claim(directory)?;
        }
    }
    let listen = &mut config.proxy.listen;
    let listeners = Listeners::bind(listen, config.proxy.admin_mode, dns_may_move)?;
    let wanted_dns = listen.dns.clone();
    listeners.write_bound(listen).map_err(internal)?;
    let addresses = [&*listen.dns, &listen.proxy, &listen.mcp].concat();
    let config = Arc::new(config);
    let own = OwnListeners::new(addresses.iter().copied());
    let app = App::build(source, Arc::clone(&config), own)?;
    app.learner.settle(&config.learned).await;
    app.policies
        .settle(|change| admin::policy_set(&*app, change))
        .await;
    if let Some(dev) = &dev {
        dev.register(&app.registry).await?;
    }
    let mut running = app.start(listeners)?;
    tracing::info!(?addresses, admin = %config.proxy.listen.admin.display(), "listening");
    if dev.is_some() {
        dev::print_what_to_try(&config, &wanted_dns);
    }
    running.until_signalled().await;
    running.drain().await;
    Ok(())
}

/// All parts of the server, before its tasks are started.
struct App {
    engine: Arc<Engine>,
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    grants: Arc<LiveGrants>,
    learner: Arc<Learner>,
    policies: Arc<PolicyKeeper>,
    metrics: prometheus::Registry,
    checks: Checks,
    addons: addons::State,
    log: AuditLog,
    reloader: Arc<Reloader>,
    snapshots: Arc<SnapshotStore>,
    commands: Arc<CommandRunner>,
    questions: Arc<dns::Service>,
    operator: Operator,
    approval_metrics: ApprovalMetrics,
    notifier: Notifier,
    admin_uids: Vec<u32>,
    _data_dir: DataDir,
}

impl App {
    fn build(source: Source, config: Arc<Config>, own: OwnListeners) -> Result<Arc<Self>, Failure> {
        let proxy = &config.proxy;
        let data_dir = DataDir::open(&proxy.data_dir)?;
        let provider = Arc::new(tls::provider());
        let authority = Authority::open(
            CaFiles::new(&proxy.data_dir, &proxy.certs_dir),
            Arc::clone(&provider),
        )?;
        let socket_dir = absolute_socket_directory(&proxy.listen);
        let store = SqliteStore::new(proxy.data_dir.join(FILE_NAME));
        let registry = Registry::open(store, &socket_dir);
        let ledger = approvals::open(&proxy.data_dir).map_err(internal)?;
        let definitions = DefinitionFile::open(&proxy.data_dir);
        let grants = LiveGrants::new(Arc::clone(&ledger), Arc::clone(&registry));
        let metrics = prometheus::Registry::new();
        let approval_metrics = ApprovalMetrics::new(&metrics).map_err(internal)?;
        let audit = HealthFlag::default();
        let log =
            AuditLog::start(proxy.audit.clone(), audit.clone(), &metrics).map_err(internal)?;
        let client = Arc::new(OutboundClient::default());
        let notifier = Notifier::new(Arc::clone(&client) as _, &metrics).map_err(internal)?;
        let outside = SystemPorts {
            outbound: Arc::clone(&client) as _,
            files: Arc::new(FilesOnDisk),
            tasks: Arc::new(TokioTasks),
        };
        let addons = addons::State::new(config.addons.audit, log.flow_log(), outside, &metrics)
            .map_err(internal)?;
        let nameservers = Arc::new(NameserverWatch::new(&metrics).map_err(internal)?);
        let workers = Workers::start().map_err(internal)?;
        let shares = DescriptorShares::of_this_process();
        let stopping = CancellationToken::new();
        let spawner = Spawner::start(SELF_EXE.into()).map_err(internal)?;
        let machine = Arc::new(mcp::machine(&config, &source.dir));
        let commands = Arc::new(CommandRunner::new(spawner.clone(), Arc::clone(&machine)));
        let long_lived = LongLived {
            addons: addons.clone(),
            sockets: Arc::new(SocketBudget::new(shares.upstreams)),
            lookups: shares.lookups,
            nameservers: Arc::clone(&nameservers),
            policies: PolicyParts {
                threads: Arc::new(PolicyThreads::start().map_err(internal)?),
                commands: Arc::clone(&commands),
                metrics: Arc::new(PolicyMetrics::new(&metrics).map_err(internal)?),
            },
            ledger: Arc::clone(&ledger),
            grants: Arc::clone(&grants),
            definitions: Arc::clone(&definitions),
            stopping: stopping.clone(),
        };
        let builder = Builder {
            registry: Arc::clone(&registry),
            own: Arc::new(own),
            provider,
            long_lived,
        };
        let mut policies = Policies::load(
            &config.addons.mcp.policies,
            Some(&proxy.data_dir),
            commands.machine(),
        );
        let policy_files = std::mem::take(&mut policies.files);
        let first = builder.build(1, Arc::clone(&config), None, policies)?;
        let snapshots = Arc::new(SnapshotStore::new(first));
        let current = Arc::downgrade(&snapshots);
        client.follow(Box::new(move || {
            let snapshots = current.upgrade()?;
            Some(Arc::clone(&snapshots.current().network))
        }));
        let questions = dns::Service::new(Arc::clone(&snapshots), shares.dns);
        let questions = Arc::new(questions);
        let inspection = Inspection::new(&metrics).map_err(internal)?;
        let mut service = Service::new(Arc::clone(&snapshots), inspection);
        service.stopping = stopping;
        let service = Arc::new(service);
        let later = Arc::new(OnceLock::<Weak<Reloader>>::new());
        let policies = learning::policies(&ledger, &snapshots, &later);
        let desk = PolicyDesk::new(&policies, &ledger, service.stopping.clone());
        let egress = Arc::new(EgressListeners::new(socket_dir));
        let out = (Arc::clone(&egress), Arc::clone(&registry));
        let children = (spawner, machine);
        let (gateway, operator) = mcp::gateway(
            &service,
            &config,
            definitions,
            children,
            out,
            desk,
            &metrics,
        )?;
        let servers = Arc::clone(operator.core.mounts());
        let checks = Checks {
            addons: addons.clone(),
            nameservers,
            proxy: HealthFlag::default(),
            dns: HealthFlag::default(),
            mcp: (!proxy.listen.mcp.is_empty()).then(HealthFlag::default),
            mcp_core: Arc::clone(&operator.core),
            policies: Arc::clone(&policies),
            audit,
            configuration: HealthFlag::default(),
            registry: Arc::clone(&registry),
        };
        let collector = HealthCollector::new(checks.clone()).map_err(internal)?;
        metrics.register(Box::new(collector)).map_err(internal)?;
        let engine = Engine::new(
            service,
            Arc::clone(&questions),
            gateway,
            Arc::new(authority),
            workers,
            shares.clients,
            &metrics,
        );
        let engine = Arc::new(engine.map_err(internal)?);
        egress.set_engine(&engine);
        let reloader = Reloader::new(
            source,
            builder,
            Arc::clone(&snapshots),
            servers,
            policy_files,
            checks.configuration.clone(),
            &metrics,
        );
        let reloader = Arc::new(reloader.map_err(internal)?);
        // Set here alone.
        let _ = later.set(Arc::downgrade(&reloader));
        let learner = learning::learner(&ledger, &grants, &snapshots, &reloader);
        Ok(Arc::new(Self {
            engine,
            registry,
            ledger,
            grants,
            learner,
            policies,
            metrics,
            checks,
            addons,
            log,
            reloader,
            snapshots,
            commands,
            questions,
            operator,
            approval_metrics,
            notifier,
            admin_uids: proxy.admin_uids.clone(),
            _data_dir: data_dir,
        }))
    }

    fn start(self: Arc<Self>, listeners: Listeners) -> Result<Running, Failure> {
        let signals = Signals::new().map_err(internal)?;
        let shutdown = CancellationToken::new();
        let tasks = TaskTracker::new();
        let dns_guard = self.checks.dns.on();
        for (listeners, kind, flag) in [
            (
                listeners.proxy,
                ListenerKind::Proxy,
                Some(&self.checks.proxy),
            ),
            (
                listeners.mcp,
                ListenerKind::Gateway,
                self.checks.mcp.as_ref(),
            ),
        ] {
            let guard = Arc::new(flag.map(HealthFlag::on));
            for listener in listeners {
                let (engine, guard) = (Arc::clone(&self.engine), Arc::clone(&guard));
                tasks.spawn(async move {
                    ingress::serve_tcp(engine, listener, kind).await;
                    drop(guard);
                });
            }
        }
        let questions = Arc::clone(&self.questions);
        // Shared with the proxy, so that `drain` stops DNS and the proxy at the same time.
        let stopping = self.engine.service.stopping.clone();
        let dns = listeners.dns.serve(questions, stopping);
        tasks.spawn(async move {
            dns.await;
            drop(dns_guard);
        });
        tasks.spawn(Arc::clone(&self.registry).run(shutdown.clone()));
        tasks.spawn(approvals::keep(
            Arc::clone(&self.ledger),
            Arc::clone(&self.registry),
            shutdown.clone(),
        ));
        tasks.spawn(Arc::clone(&self.grants).run(shutdown.clone()));
        // The settings may have changed while the server did not run.
        approvals::end_outdated(&self.ledger, self.snapshots.current());
        tasks.spawn(listeners::follow_own_listeners(
            Arc::clone(&self.engine),
            Arc::clone(&self.registry),
            shutdown.clone(),
        ));
        let metrics = self.approval_metrics.clone();
        tasks.spawn(metrics.follow(Arc::clone(&self.ledger), shutdown.clone()));
        let snapshots = Arc::clone(&self.snapshots);
        let targets = move || snapshots.current().config.proxy.approvals.notify.clone();
        let notifier = self.notifier.clone();
        tasks.spawn(notifier.follow(Arc::clone(&self.ledger), targets, shutdown.clone()));
        tasks.spawn(tick_audit(self.addons.clone(), shutdown.clone()));
        tasks.spawn(free_idle(self.addons.clone(), shutdown.clone()));
        tasks.spawn(refresh_ca(Arc::clone(&self.engine), shutdown.clone()));
        tasks.spawn(Arc::clone(&self.reloader).watch(shutdown.clone()));
        let state = AdminState {
            registry: Arc::clone(&self.registry),
            admin_uids: self.admin_uids.clone(),
            metrics: self.metrics.clone(),
            flows: self.log.flow_log(),
            approvals: Arc::clone(&self.ledger),
            learner: Arc::clone(&self.learner),
            policies: Arc::clone(&self.policies),
            people: Arc::clone(&self.operator.people),
            control: Arc::clone(&self) as _,
        };
        tasks.spawn(admin::serve(listeners.admin, state, shutdown.clone()));
        Ok(Running {
            app: self,
            tasks,
            shutdown,
            signals,
        })
    }
}

/// A running server: its parts and its tasks.
struct Running {
    app: Arc<App>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    signals: Signals,
}

impl Running {
    /// Waits for SIGTERM or SIGINT. Meanwhile reloads the configuration on SIGHUP and ignores
    /// SIGUSR1 and SIGUSR2.
    async fn until_signalled(&mut self) {
        let signals = &mut self.signals;
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => return,
                _ = signals.interrupt.recv() => return,
                _ = signals.hangup.recv() => {
                    // After an error, which `reload` logs, the check `configuration_current` fails.
                    let _ = self.app.reloader.reload();
                }
                _ = signals.first_user.recv() => tracing::info!("SIGUSR1 is ignored; SIGHUP reloads the configuration"),
                _ = signals.second_user.recv() => tracing::info!("SIGUSR2 is ignored; SIGHUP reloads the configuration"),
            }
        }
    }

    /// Stops accepting connections, lets flows finish within `shutdown_timeout`, then closes the
    /// remaining connections, stops MCP servers and flushes the audit log.
    async fn drain(self) {
        tracing::info!("shutting down");
        let limit = self.app.snapshots.current().config.proxy.shutdown_timeout;
        let token_sources = &self.app.addons.token_sources;
        let refreshes = tokio::time::timeout(limit, token_sources.drain());
        let begun = Instant::now();
        let _ = tokio::join!(self.app.engine.stop(limit), refreshes);
        // MCP servers stop after the flows that use them. They get the rest of `limit`, but at
        // least `DRAIN_STEP_LIMIT`.
        let left = limit.saturating_sub(begun.elapsed()).max(DRAIN_STEP_LIMIT);
        self.app.operator.core.mounts().stop(left).await;
        // The commands of the flows that were aborted are being killed.
        let _ = tokio::time::timeout(DRAIN_STEP_LIMIT, self.app.commands.settled()).await;
        // Flows may have started more refreshes of tokens since the first `token_sources.drain`.
        let _ = tokio::time::timeout(DRAIN_STEP_LIMIT, token_sources.drain()).await;
        self.shutdown.cancel();
        self.tasks.close();
        // A task that has not ended within the limit, for example because it waits for a nameserver
        // or a disk, is dropped with the runtime.
        let _ = tokio::time::timeout(DRAIN_STEP_LIMIT, self.tasks.wait()).await;
        self.app.addons.audit.flush();
        self.app.log.finish();
    }
}

/// Writes folded audit lines when they are due.
async fn tick_audit(addons: addons::State, shutdown: CancellationToken) {
    while pause(AUDIT_INTERVAL, &shutdown).await {
        addons.audit.tick(Instant::now());
    }
}

/// Frees idle buckets of rate limits and idle circuits.
async fn free_idle(addons: addons::State, shutdown: CancellationToken) {
    while pause(FREE_IDLE_INTERVAL, &shutdown).await {
        let now = Instant::now();
        addons.buckets.free_idle(now);
        addons.breakers.forget_idle(now);
    }
}

/// Reads the files of the interception CA again every [`CA_REFRESH`], to notice a rotation.
async fn refresh_ca(engine: Arc<Engine>, shutdown: CancellationToken) {
    while pause(CA_REFRESH, &shutdown).await {
        let engine = Arc::clone(&engine);
        let refreshed = tokio::task::spawn_blocking(move || engine.refresh_authority()).await;
        if let Ok(Err(error)) = refreshed {
            tracing::error!(%error, "the files of the interception CA cannot be read; the proxy continues with the CA in memory");
        }
    }
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::Internal(error.to_string())
}
