//! Servers that do as a test says, behind a chain that keeps what it judged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::settings::Place;
use addons::contract::{
    Addon, AuthMode, BoxFuture, CallPermit, Chain, Client, Code, Container, ContainerId,
    Definitions, Denial, Direction, Flow, Frame, FrameBody, Identified, Identify, LeaseId, Level,
    Link, Outcome as Ended, Pin, Principal, Registration, Request, RpcError, Source, Standing,
    Step, Unavailable, names,
};
use addons::mcp::{
    Confine, McpMetrics, McpSettings, Scope, ServerKind, ServerSettings, StdioSettings,
};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::{
    Caller, Core, Described, Event, Events, Interest, MountError, Outcome, Rules, Version,
};
use crate::mcp::mounts::{MountPorts, MountSession, Mounts, Opening, Transport, Transports};

/// A message that a server was sent.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub params: Value,
    /// The text of the params.
    pub text: String,
}

/// Answers a request other than those for lists.
type Answer = dyn Fn(Seen, Events) -> BoxFuture<'static, Outcome> + Send + Sync;

/// One server.
pub struct Server {
    pub version: Version,
    pub capabilities: Mutex<Value>,
    pub tools: Mutex<Value>,
    pub prompts: Mutex<Value>,
    pub resources: Mutex<Value>,
    pub templates: Mutex<Value>,
    pub answer: Mutex<Arc<Answer>>,
    pub seen: Mutex<Vec<Seen>>,
    pub unsolicited: Mutex<Option<Events>>,
    pub opened: AtomicUsize,
    pub cancelled: Arc<AtomicUsize>,
    /// Cannot be reached.
    pub is_down: Mutex<bool>,
    /// Never answers when it is opened.
    pub hangs: Mutex<bool>,
    ended: Mutex<CancellationToken>,
}

impl Server {
    pub fn new(version: Version) -> Arc<Self> {
        Arc::new(Self {
            version,
            capabilities: Mutex::new(json!({
                "tools": {"listChanged": true}, "prompts": {}, "resources": {"subscribe": true},
                "logging": {}, "completions": {},
            })),
            tools: Mutex::new(json!([tool("echo")])),
            prompts: Mutex::new(json!([])),
            resources: Mutex::new(json!([])),
            templates: Mutex::new(json!([])),
            answer: Mutex::new(Arc::new(|seen, _| {
                Box::pin(async move { raw(json!({"content": [], "seen": seen.params})) })
            })),
            seen: Mutex::default(),
            unsolicited: Mutex::default(),
            opened: AtomicUsize::new(0),
            cancelled: Arc::default(),
            is_down: Mutex::new(false),
            hangs: Mutex::new(false),
            ended: Mutex::default(),
        })
    }

    pub fn answers<F>(&self, answer: impl Fn(Seen, Events) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        *self.answer.lock() = Arc::new(move |seen, events| Box::pin(answer(seen, events)));
    }

    /// What it was sent of one method.
    pub fn sent(&self, method: &str) -> Vec<Seen> {
        let seen = self.seen.lock();
        seen.iter()
            .filter(|one| one.method == method)
            .cloned()
            .collect()
    }

    /// Sends what belongs to no request.
    pub async fn say(&self, event: Event) {
        let events = self.unsolicited.lock().clone().unwrap();
        events.send(event).await.unwrap();
    }

    pub fn die(&self) {
        *self.is_down.lock() = true;
        self.ended.lock().cancel();
    }
}

/// A tool's definition.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

pub fn raw(value: Value) -> Outcome {
    Ok(to_raw_value(&value).unwrap())
}

pub fn parsed(outcome: &Outcome) -> Value {
    match outcome {
        Ok(result) => serde_json::from_str(result.get()).unwrap(),
        Err(error) => panic!("{error:?}"),
    }
}

pub fn notification(method: &str, params: Value) -> Event {
    Event::Notification {
        method: method.into(),
        params: Some(to_raw_value(&params).unwrap()),
    }
}

struct Session {
    server: Arc<Server>,
    described: Described,
    ended: CancellationToken,
}

/// Counts a request that was dropped before it was answered.
struct Cancelled(Option<Arc<AtomicUsize>>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        if let Some(count) = self.0.take() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl MountSession for Session {
    fn version(&self) -> Version {
        self.server.version
    }

    fn described(&self) -> &Described {
        &self.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            let text = permit.params().map_or("{}", RawValue::get).to_owned();
            let seen = Seen {
                method: permit.method().to_string(),
                params: serde_json::from_str(&text).unwrap(),
                text,
            };
            self.server.seen.lock().push(seen.clone());
            let list = |items: &Mutex<Value>, key: &str| {
                let mut result =
                    json!({"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"});
                result[key] = items.lock().clone();
                Ok(raw(result))
            };
            match &*seen.method {
                "tools/list" => list(&self.server.tools, "tools"),
                "prompts/list" => list(&self.server.prompts, "prompts"),
                "resources/list" => list(&self.server.resources, "resources"),
                "resources/templates/list" => list(&self.server.templates, "resourceTemplates"),
                _ => {
                    let mut cancelled = Cancelled(Some(Arc::clone(&self.server.cancelled)));
                    let answer = Arc::clone(&self.server.answer.lock());
                    let outcome = tokio::select! {
                        outcome = answer(seen, events) => Ok(outcome),
                        () = self.ended.cancelled() => Err(MountError::Died { exit: Some(1) }),
                    };
                    cancelled.0 = None;
                    outcome
                }
            }
        })
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        let text = permit.params().map_or("{}", RawValue::get).to_owned();
        self.server.seen.lock().push(Seen {
            method: permit.method().to_string(),
            params: serde_json::from_str(&text).unwrap(),
            text,
        });
        Box::pin(async { Ok(()) })
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

struct Opens(Arc<Server>);

impl Transport for Opens {
    fn open<'a>(
        &'a self,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Arc<dyn MountSession>, MountError>> {
        Box::pin(async move {
            let server = Arc::clone(&self.0);
            while *server.hangs.lock() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if *server.is_down.lock() {
                return Err(MountError::CannotStart("it is down".to_owned()));
            }
            server.opened.fetch_add(1, Ordering::SeqCst);
            *server.unsolicited.lock() = Some(opening.unsolicited);
            let ended = CancellationToken::new();
            *server.ended.lock() = ended.clone();
            let capabilities = to_raw_value(&*server.capabilities.lock()).unwrap();
            let session: Arc<dyn MountSession> = Arc::new(Session {
                server,
                described: Described {
                    capabilities,
                    server_info: None,
                    instructions: Some("Be kind.".to_owned()),
                },
                ended,
            });
            Ok(session)
        })
    }
}

struct All(BTreeMap<Arc<str>, Arc<Server>>);

impl Transports for All {
    fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport> {
        Arc::new(Opens(Arc::clone(&self.0[&server.name])))
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

struct AcceptAll;

impl Definitions for AcceptAll {
    fn pin<'a>(
        &'a self,
        _server: &'a str,
        tools: Vec<(Arc<str>, [u8; 32])>,
    ) -> BoxFuture<'a, Result<Vec<Pin>, Unavailable>> {
        Box::pin(async move { Ok(vec![Pin::Accepted; tools.len()]) })
    }
}

/// What the chain judged: direction, method, params or outcome.
pub type Judged = (Direction, String, Value);

/// Keeps what it judges. Denies methods, and raises the level after calls of a tool.
#[derive(Default)]
pub struct Judge {
    pub requests: Mutex<Vec<Judged>>,
    pub responses: Mutex<Vec<Judged>>,
    pub denied: Mutex<Vec<&'static str>>,
    pub raises: Mutex<Option<&'static str>>,
    pub ended: Mutex<Vec<(String, bool, u16)>>,
}

impl Addon for Judge {
    fn name(&self) -> &'static str {
        names::POLICY
    }

    fn mcp_request<'a>(&'a self, _flow: &'a mut Flow, frame: &'a mut Frame) -> Step<'a> {
        let params = frame.params().map_or("{}", RawValue::get);
        let params = serde_json::from_str(params).unwrap();
        let judged = (frame.direction, frame.method.to_string(), params);
        self.requests.lock().push(judged);
        if self.denied.lock().contains(&&*frame.method) {
            let denial = Denial::new(Code::PolicyDeniedContinue, "No");
            return Err(denial.with("reason", "No")).into();
        }
        Step::PASS
    }

    fn mcp_response<'a>(&'a self, flow: &'a mut Flow, frame: &'a mut Frame) -> Step<'a> {
        let FrameBody::Outcome(outcome) = &frame.body else {
            panic!("a response has an outcome");
        };
        let outcome = match outcome {
            Ok(result) => serde_json::from_str(result.get()).unwrap(),
            Err(error) => json!({"error": error.code}),
        };
        let judged = (frame.direction, frame.method.to_string(), outcome);
        self.responses.lock().push(judged);
        let called = flow.mcp().and_then(|subject| subject.name.as_deref());
        if called.is_some() && called == *self.raises.lock() {
            flow.container().unwrap().raise_level(Level::Confidential);
        }
        Step::PASS
    }

    fn finished(&self, flow: &Flow, outcome: &Ended) {
        let method = flow.mcp().unwrap().method.to_string();
        self.ended
            .lock()
            .push((method, outcome.aborted, outcome.status));
    }
}

struct Known;

impl Identify for Known {
    fn name(&self) -> &'static str {
        names::IDENTITY
    }

    fn identify(&self, _flow: &Flow, _request: Option<&mut Request>) -> Identified {
        Identified {
            principal: None,
            verdict: Ok(()),
        }
    }
}

/// A core over some servers.
pub struct Fixture {
    pub core: Arc<Core>,
    pub container: Arc<Container>,
    pub judge: Arc<Judge>,
    pub settings: Arc<ArcSwap<McpSettings>>,
}

pub fn settings_of(name: &str, prefix: &str) -> Arc<ServerSettings> {
    Arc::new(ServerSettings {
        name: name.into(),
        prefix: prefix.into(),
        kind: ServerKind::Stdio(StdioSettings {
            command: vec!["server".to_owned()],
            env: Vec::new(),
            work_dir: None,
            hosts: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            confine: Confine::None,
        }),
        timeout: Duration::from_secs(20),
        containers: vec!["*".into()],
        scope: Scope::Container,
        place: Place { line: 1, column: 1 },
    })
}

impl Fixture {
    /// Servers by name, each with its name as its prefix.
    pub fn of(servers: &[(&str, &Arc<Server>)]) -> Self {
        let settings = servers
            .iter()
            .map(|(name, _)| settings_of(name, &format!("{name}_")));
        Self::with(servers, settings.collect())
    }

    /// One server whose tools keep their names.
    pub fn sole(server: &Arc<Server>) -> Self {
        Self::with(&[("only", server)], vec![settings_of("only", "")])
    }

    pub fn with(servers: &[(&str, &Arc<Server>)], settings: Vec<Arc<ServerSettings>>) -> Self {
        let named = settings.into_iter().map(|one| (Arc::clone(&one.name), one));
        let settings = McpSettings {
            servers: named.collect(),
            ..McpSettings::default()
        };
        let judge = Arc::new(Judge::default());
        let links = vec![
            Link::Identity(Arc::new(Known)),
            Link::from(Arc::clone(&judge)),
        ];
        let chain = Arc::new(Chain::new(links, Duration::from_secs(5)).unwrap());
        let all = servers
            .iter()
            .map(|(name, server)| ((*name).into(), Arc::clone(server)));
        let of_lists = Arc::clone(&chain);
        let ports = MountPorts {
            chain: Arc::new(move || Some(Arc::clone(&of_lists))),
            definitions: Arc::new(AcceptAll),
            transports: Arc::new(All(all.collect())),
        };
        let mounts = Arc::new(Mounts::new(ports, &settings.servers));
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let in_force = Arc::clone(&settings);
        let rules = move || Rules {
            policies_loaded: true,
            chain: Arc::clone(&chain),
            settings: in_force.load_full(),
        };
        Self {
            core: Core::new(
                Box::new(rules),
                mounts,
                McpMetrics::new(&prometheus::Registry::new()).unwrap(),
            ),
            container: container(),
            judge,
            settings,
        }
    }

    pub fn client(&self, version: Version) -> Arc<Caller> {
        self.client_with(
            version,
            json!({"elicitation": {}, "sampling": {}, "roots": {}}),
            "one",
        )
    }

    pub fn client_with(&self, version: Version, capabilities: Value, session: &str) -> Arc<Caller> {
        Arc::new(Caller {
            client: Client::default(),
            principal: Principal::from(Arc::clone(&self.container)),
            container: Arc::clone(&self.container),
            version,
            capabilities: to_raw_value(&capabilities).unwrap().into(),
            info: None,
            session: Some(session.into()),
            log_level: None,
            trace: None,
        })
    }

    pub async fn ask(&self, caller: &Arc<Caller>, method: &str, params: Value) -> Outcome {
        self.ask_with(caller, method, params, mpsc::channel(256).0)
            .await
    }

    pub async fn ask_with(
        &self,
        caller: &Arc<Caller>,
        method: &str,
        params: Value,
        events: Events,
    ) -> Outcome {
        let params = Some(to_raw_value(&params).unwrap());
        let core = Arc::clone(&self.core);
        core.request(Arc::clone(caller), method.into(), params, events)
            .await
    }

    /// The names of a list.
    pub async fn names(&self, caller: &Arc<Caller>, method: &str) -> Vec<String> {
        let result = parsed(&self.ask(caller, method, json!({})).await);
        let (_, list) = result
            .as_object()
            .unwrap()
            .iter()
            .find(|(_, value)| value.is_array())
            .unwrap();
        let name = |entry: &Value| {
            let keys = ["name", "uri", "uriTemplate"];
            let key = keys.iter().rev().find_map(|key| entry.get(key));
            key.unwrap().as_str().unwrap().to_owned()
        };
        list.as_array().unwrap().iter().map(name).collect()
    }

    /// Attaches a client; returns what keeps it, and its events.
    pub fn attach(
        &self,
        caller: &Arc<Caller>,
        interest: Interest,
    ) -> (super::super::Attachment, mpsc::Receiver<Event>) {
        let (sender, events) = mpsc::channel(256);
        (self.core.attach(caller, interest, sender), events)
    }
}

pub fn container() -> Arc<Container> {
    let now = OffsetDateTime::now_utc();
    let id = ContainerId::parse("web").unwrap();
    Arc::new(Container::new(Registration {
        source: Source::Listener(id.clone()),
        id,
        lease: LeaseId::generate(),
        repos: Vec::new(),
        auth_mode: AuthMode::User,
        created_at: now,
        expires_at: now + time::Duration::HOUR,
        allowed_domains: None,
        standing: Standing::default(),
    }))
}

pub fn error(outcome: Outcome) -> RpcError {
    outcome.unwrap_err()
}
