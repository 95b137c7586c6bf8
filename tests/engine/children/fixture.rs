//! Mounts whose MCP servers are local processes, started by the real binary.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use addons::contract::settings::{Env, Place};
use addons::contract::*;
use addons::mcp::*;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::sync::CancellationToken;
use unified_proxy::config::{Profile, load_with};
use unified_proxy::http::{Inspection, Reservation};
use unified_proxy::mcp::*;

use crate::loopback::{FakeContainers, Log, chain};

/// Path of the proxy's binary, which starts the confined processes.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_unified-proxy");
pub const SERVER: &str = include_str!("server.py");
pub const ONE: &str = "127.0.0.1";
const LIMITS: MessageLimits = MessageLimits {
    bytes: 1 << 20,
    values: 100_000,
};

pub struct Fixture {
    pub mounts: Arc<Mounts>,
    pub containers: Arc<FakeContainers>,
    pub chain: Arc<Chain>,
    pub metrics: prometheus::Registry,
    transports: Arc<dyn Transports>,
    /// State directory of the proxy, which no child may see.
    pub state: PathBuf,
    _directory: tempfile::TempDir,
}

/// Accepts the definition of every tool.
struct AllAccepted;

impl Definitions for AllAccepted {
    fn pin<'a>(
        &'a self,
        _: &'a str,
        tools: Vec<ListedDefinition>,
    ) -> BoxFuture<'a, Result<Vec<Pin>, Unavailable>> {
        Box::pin(async move { Ok(vec![Pin::Accepted; tools.len()]) })
    }
}

/// Memory for the messages of one container.
pub struct Memory(Arc<Inspection>, Arc<Container>);

impl Memory {
    pub fn of_one() -> Arc<dyn MessageMemory> {
        let inspection = Inspection::new(&prometheus::Registry::new()).unwrap();
        let containers = FakeContainers::at(&[ONE]);
        let container = Arc::clone(containers.get(ONE));
        Arc::new(Self(Arc::new(inspection), container))
    }
}

impl MessageMemory for Memory {
    fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        self.0.begin(&self.1, 256 << 20)
    }

    fn count(&self, denial: &Denial) {
        self.0.count(denial);
    }
}

/// Makes a stdio transport for each server, whatever its kind.
struct StdioOnly {
    ports: Arc<StdioPorts>,
    spawner: Spawner,
    machine: Arc<Machine>,
}

impl Transports for StdioOnly {
    fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport> {
        let (spawner, machine) = (self.spawner.clone(), Arc::clone(&self.machine));
        let kind = server.kind.clone();
        let settings = match &kind {
            ServerKind::Stdio(settings) => settings.clone(),
            _ => stdio(&["true"]),
        };
        let make = move || process_manager(&kind, &spawner, &machine).unwrap();
        Arc::new(StdioTransport::new(
            &self.ports,
            server,
            settings,
            Box::new(make),
        ))
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.ports.children.settled())
    }
}

/// Opens Unix sockets that answer with the name of the delegation's system.
struct Named(PathBuf);

impl Egress for Named {
    fn open(&self, delegation: Arc<Delegation>) -> io::Result<EgressListener> {
        use io::{Read, Write};
        let path = self.0.join("way-out.sock");
        let listener = UnixListener::bind(&path)?;
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(delegation.system.name.as_bytes());
            }
        });
        let guard = CancellationToken::new().drop_guard();
        Ok(EgressListener { path, guard })
    }
}

impl Fixture {
    pub fn new(servers: Vec<ServerSettings>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        let (state, certificates) = (root.join("state"), root.join("certs"));
        fs::create_dir(&state).unwrap();
        fs::create_dir(&certificates).unwrap();
        fs::write(certificates.join("ca-bundle.pem"), "").unwrap();
        fs::write(state.join("registry.db"), "secret").unwrap();
        let metrics = prometheus::Registry::new();
        let containers = Arc::new(FakeContainers::at(&[ONE]));
        let chain = chain(&containers, &Log::default());
        let ports = StdioPorts {
            children: Children::new(&metrics).unwrap(),
            egress: Arc::new(Named(state.clone())),
            limits: Arc::new(|| LIMITS),
            memory: Arc::new(|_, _| Some(Memory::of_one())),
        };
        let in_force = Arc::clone(&chain);
        let transports: Arc<dyn Transports> = Arc::new(StdioOnly {
            ports: Arc::new(ports),
            spawner: Spawner::start(PROGRAM.into()).unwrap(),
            machine: Arc::new(Machine::new(certificates, vec![state.clone()])),
        });
        let ports = MountPorts {
            chain: Arc::new(move || Some(Arc::clone(&in_force))),
            definitions: Arc::new(AllAccepted),
            transports: Arc::clone(&transports),
            memory: Arc::new(|_, _| Some(Memory::of_one())),
        };
        Self {
            mounts: Arc::new(Mounts::new(ports, &by_name(servers))),
            containers,
            chain,
            metrics,
            transports,
            state,
            _directory: directory,
        }
    }

    pub fn container(&self) -> &Arc<Container> {
        self.containers.get(ONE)
    }

    pub fn caller(&self, version: Version) -> Caller {
        let container = Arc::clone(self.container());
        Caller {
            client: Client::default(),
            principal: Principal::from(Arc::clone(&container)),
            container,
            version,
            capabilities: RawValue::from_string("{\"elicitation\":{}}".to_owned())
                .unwrap()
                .into(),
            info: None,
            session: None,
            log_level: None,
            takes_tasks: false,
        }
    }

    pub async fn session(&self, server: &str, version: Version) -> Result<Arc<Pooled>, MountError> {
        let mount = self.mounts.find(self.container(), server).unwrap();
        mount.session(&self.caller(version)).await
    }

    /// Opens a session that is not in the pool.
    pub async fn open(&self, server: ServerSettings) -> Result<Arc<dyn MountSession>, MountError> {
        let caller = self.caller(Version::V2025_11_25);
        let opening = Opening {
            container: Some(caller.container),
            version: caller.version,
            capabilities: caller.capabilities,
            unsolicited: Events::uncharged(EVENT_QUEUE).0,
        };
        self.transports.of(&Arc::new(server)).open(opening).await
    }

    /// Calls a tool and returns the text of its result, parsed as JSON.
    pub async fn call(
        &self,
        pooled: &Pooled,
        tool: &str,
        arguments: Value,
    ) -> Result<Value, MountError> {
        self.call_with(pooled, tool, arguments, Events::uncharged(256).0)
            .await
    }

    pub async fn call_with(
        &self,
        pooled: &Pooled,
        tool: &str,
        arguments: Value,
        events: Events,
    ) -> Result<Value, MountError> {
        let meta = serde_json::json!({ "progressToken": 7 });
        let params = serde_json::json!({ "name": tool, "arguments": arguments, "_meta": meta });
        let permit = self.permit("tools/call", params).await;
        let result = pooled.session.request(permit, events).await?.unwrap();
        let result: Value = serde_json::from_str(result.get()).unwrap();
        let text = result["content"][0]["text"].as_str().unwrap();
        Ok(serde_json::from_str(text).unwrap())
    }

    pub async fn permit(&self, method: &str, params: Value) -> CallPermit {
        let subject = McpSubject {
            server: Some("t".into()),
            method: method.into(),
            name: None,
        };
        let mut start = self.chain.for_mcp(Client::default(), subject);
        start.principal = Some(Principal::from(Arc::clone(self.container())));
        let mut live = LiveFlow::begin(&self.chain, start);
        let params = to_raw_value(&params).unwrap();
        let target = McpTarget::Server("t".into());
        let frame = Frame::request(Direction::ToServer, target, method, Some(params));
        self.chain.mcp_request(&mut live.flow, frame).await.unwrap()
    }
}

/// The servers of an `mcp.yaml`. Its variables are read with `env`.
pub fn servers_of(mcp: &Value, env: Env<'_>) -> BTreeMap<Arc<str>, Arc<ServerSettings>> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("mcp.yaml"), mcp.to_string()).unwrap();
    let config = load_with(directory.path(), Profile::Serve, env).unwrap();
    config.addons.mcp.servers.clone()
}

pub fn by_name(servers: Vec<ServerSettings>) -> BTreeMap<Arc<str>, Arc<ServerSettings>> {
    let named = servers.into_iter();
    named
        .map(|server| (Arc::clone(&server.name), Arc::new(server)))
        .collect()
}

pub fn stdio(command: &[&str]) -> StdioSettings {
    StdioSettings {
        command: command
            .iter()
            .map(|part| HiddenValue((*part).to_owned().into()))
            .collect(),
        env: Vec::new(),
        expanded: Vec::new(),
        work_dir: None,
        hosts: Vec::new(),
        read: Vec::new(),
        write: Vec::new(),
        confine: Confine::Namespaces,
        unix_sockets: false,
        eager: true,
    }
}

/// Settings of the Python test server. `mode` lists the protocol eras that the server supports:
/// `legacy` (the revisions before 2026-07-28) and `modern` (2026-07-28). Without `modern`, the
/// server answers `server/discover` with an error; with `silent` it does not answer, with `strict`
/// it exits. With `deaf`, it reads nothing after the handshake. With `slow`, it takes 5.5 s to
/// start; a session in which it has answered `server/discover` refuses `initialize`.
pub fn python(mode: &str) -> StdioSettings {
    stdio(&["python3", "-c", SERVER, mode])
}

pub fn mounted(name: &str, settings: StdioSettings) -> ServerSettings {
    ServerSettings {
        name: name.into(),
        prefix: format!("{name}_").into(),
        kind: ServerKind::Stdio(settings),
        timeout: Duration::from_secs(20),
        containers: vec!["*".into()],
        scope: Scope::Container,
        classification: None,
        resources: Vec::new(),
        prompts: Vec::new(),
        place: Place { line: 1, column: 1 },
    }
}

/// Pid and state of all descendants of a process, zombies included.
pub fn descendants(of: u32) -> Vec<(u32, char)> {
    let mut all = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let stat = fs::read_to_string(process.path().join("stat"));
        if let (Ok(pid), Ok(stat)) = (process.file_name().to_str().unwrap().parse::<u32>(), stat) {
            let fields: Vec<_> = stat
                .rsplit_once(')')
                .unwrap()
                .1
                .split_whitespace()
                .collect();
            let state = fields[0].chars().next().unwrap();
            all.push((pid, fields[1].parse::<u32>().unwrap(), state));
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        for (pid, of, state) in &all {
            if *of == parent {
                found.push((*pid, *state));
                parents.push(*pid);
            }
        }
    }
    found
}

/// Whether the command line of any process of the machine contains this text.
pub fn is_running(marker: &str) -> bool {
    running(marker) > 0
}

/// The number of processes with a text in their command line.
pub fn running(marker: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let has = |line: &Vec<u8>| String::from_utf8_lossy(line).contains(marker);
    lines.filter(has).count()
}

/// Checks a condition every 20 ms until it holds. Returns false if it does not hold within `limit`.
pub async fn eventually(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = tokio::time::Instant::now() + limit;
    while !holds() {
        if tokio::time::Instant::now() > until {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

pub fn open_descriptors() -> usize {
    fs::read_dir(Path::new("/proc/self/fd")).unwrap().count()
}
