//! A core with scripted servers, and a chain that records the messages that it judges.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use addons::contract::settings::Place;
use addons::contract::{
    Addon, AuthMode, BoxFuture, Chain, Client, Code, Container, ContainerId, Definitions, Denial,
    Direction, Flow, Frame, FrameBody, Identified, Identify, LeaseId, Level, Link,
    ListedDefinition, Outcome as Ended, Pin, Principal, Registration, Request, RpcError, Source,
    Standing, Step, Unavailable, names,
};
use addons::mcp::{
    Confine, HiddenValue, McpMetrics, McpSettings, OverrideRule, Scope, ServerKind, ServerSettings,
    StdioSettings,
};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::mpsc;

use super::super::{
    Attachment, Caller, ClientRequest, Core, Event, Events, Interest, Outcome, Rules, Version,
};
use super::double::{All, Server, parsed};
use crate::mcp::message_memory::Account;
use crate::mcp::mounts::{MountPorts, Mounts};

struct AcceptAll;

impl Definitions for AcceptAll {
    fn pin<'a>(
        &'a self,
        _server: &'a str,
        tools: Vec<ListedDefinition>,
    ) -> BoxFuture<'a, Result<Vec<Pin>, Unavailable>> {
        Box::pin(async move { Ok(vec![Pin::Accepted; tools.len()]) })
    }
}

/// A message that the chain judged: direction, method, params or outcome.
pub type Judged = (Direction, String, Value);

/// Records the messages that it judges. Denies the methods in `denied`, and raises the security
/// level after calls of the tool `raises`.
#[derive(Default)]
pub struct Judge {
    pub requests: Mutex<Vec<Judged>>,
    pub responses: Mutex<Vec<Judged>>,
    pub denied: Mutex<Vec<&'static str>>,
    /// Denies only the next message of this method.
    pub denied_once: Mutex<Option<&'static str>>,
    pub raises: Mutex<Option<&'static str>>,
    pub ended: Mutex<Vec<(String, bool, u16)>>,
    /// The server and the name of each ended flow.
    pub subjects: Mutex<Vec<[Option<String>; 2]>>,
    /// For each judged message, the method and the length of [`Frame::tools`]; `None` if the core
    /// attached no tools. The method of a response is written as `answer to METHOD`.
    pub tools: Mutex<Vec<(String, Option<usize>)>>,
    /// [`Fixture::memory`].
    pub memory: OnceLock<Arc<Account>>,
    /// The reserved memory while each answer of a client was judged, in bytes.
    pub reserved: Mutex<Vec<usize>>,
    /// The method of the requests that are redacted, and the params that replace theirs.
    pub redacted: Mutex<Option<(&'static str, Value)>>,
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
        let tools = frame.tools.as_ref().map(|tools| tools.len());
        self.tools.lock().push((frame.method.to_string(), tools));
        let once = self
            .denied_once
            .lock()
            .take_if(|method| *method == &*frame.method);
        if let Some((method, params)) = &*self.redacted.lock()
            && *method == &*frame.method
        {
            frame.body = FrameBody::Params(to_raw_value(params).ok());
        }
        if once.is_some() || self.denied.lock().contains(&&*frame.method) {
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
        if let (Direction::ToClient, Some(memory)) = (frame.direction, self.memory.get()) {
            self.reserved.lock().push(memory.reserved());
        }
        let tools = frame.tools.as_ref().map(|tools| tools.len());
        let answered = format!("answer to {}", frame.method);
        self.tools.lock().push((answered, tools));
        let called = flow.mcp().and_then(|subject| subject.name.as_deref());
        if called.is_some() && called == *self.raises.lock() {
            flow.container().unwrap().raise_level(Level::Confidential);
        }
        Step::PASS
    }

    fn finished(&self, flow: &Flow, outcome: &Ended) {
        let subject = flow.mcp().unwrap();
        let named = [&subject.server, &subject.name].map(|name| name.as_deref().map(str::to_owned));
        self.subjects.lock().push(named);
        let method = subject.method.to_string();
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

/// A core, and the state that tests change or read.
pub struct Fixture {
    pub core: Arc<Core>,
    pub container: Arc<Container>,
    pub judge: Arc<Judge>,
    pub settings: Arc<ArcSwap<McpSettings>>,
    pub metrics: prometheus::Registry,
    /// The memory that messages and lists of all servers are charged to.
    pub memory: Arc<Account>,
}

/// The size of [`Fixture::memory`], in bytes.
pub const MEMORY: usize = 8 << 20;

pub fn settings_of(name: &str, prefix: &str) -> Arc<ServerSettings> {
    Arc::new(ServerSettings {
        name: name.into(),
        prefix: prefix.into(),
        kind: ServerKind::Stdio(StdioSettings {
            command: vec![HiddenValue("server".to_owned().into())],
            env: Vec::new(),
            expanded: Vec::new(),
            work_dir: None,
            hosts: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            confine: Confine::None,
            unix_sockets: false,
            eager: true,
        }),
        timeout: Duration::from_secs(20),
        containers: vec!["*".into()],
        scope: Scope::Container,
        classification: None,
        resources: Vec::new(),
        prompts: Vec::new(),
        place: Place { line: 1, column: 1 },
    })
}

impl Fixture {
    /// Creates a core for these servers. The prefix of a server is its name and `_`.
    pub fn of(servers: &[(&str, &Arc<Server>)]) -> Self {
        let settings = servers
            .iter()
            .map(|(name, _)| settings_of(name, &format!("{name}_")));
        Self::with(servers, settings.collect())
    }

    /// Creates a core for one server, whose tools keep their names.
    pub fn sole(server: &Arc<Server>) -> Self {
        Self::with(&[("only", server)], vec![settings_of("only", "")])
    }

    pub fn with(servers: &[(&str, &Arc<Server>)], settings: Vec<Arc<ServerSettings>>) -> Self {
        Self::with_addon(servers, settings, |_| None)
    }

    /// As [`Self::with`]. After the [`Judge`], the addon that `addon` makes judges the messages.
    pub fn with_addon(
        servers: &[(&str, &Arc<Server>)],
        settings: Vec<Arc<ServerSettings>>,
        addon: impl FnOnce(&McpSettings) -> Option<Link>,
    ) -> Self {
        let named = settings.into_iter().map(|one| (Arc::clone(&one.name), one));
        let settings = McpSettings {
            servers: named.collect(),
            ..McpSettings::default()
        };
        let judge = Arc::new(Judge::default());
        let mut links = vec![
            Link::Identity(Arc::new(Known)),
            Link::from(Arc::clone(&judge)),
        ];
        links.extend(addon(&settings));
        let chain = Arc::new(Chain::new(links, Duration::from_secs(5)).unwrap());
        let all = servers
            .iter()
            .map(|(name, server)| ((*name).into(), Arc::clone(server)));
        let of_lists = Arc::clone(&chain);
        let memory = Account::of(MEMORY);
        let _ = judge.memory.set(Arc::clone(&memory));
        let account = Arc::clone(&memory);
        let ports = MountPorts {
            chain: Arc::new(move || Some(Arc::clone(&of_lists))),
            definitions: Arc::new(AcceptAll),
            transports: Arc::new(All(all.collect())),
            memory: Arc::new(move |_, _| Some(Arc::clone(&account) as _)),
        };
        let mounts = Arc::new(Mounts::new(ports, &settings.servers));
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let in_force = Arc::clone(&settings);
        let rules = move || Rules {
            policies_loaded: true,
            chain: Arc::clone(&chain),
            settings: in_force.load_full(),
        };
        let metrics = prometheus::Registry::new();
        let counters = McpMetrics::new(&metrics).unwrap();
        Self {
            core: Core::new(Box::new(rules), mounts, counters),
            metrics,
            container: container(),
            judge,
            settings,
            memory,
        }
    }

    /// Says that the tool `echo` of the server `only` does not reach the open world.
    pub fn close_echo(&self) {
        let mut settings = McpSettings::clone(&self.settings.load());
        let rule = OverrideRule {
            open_world: Some(false),
            ..OverrideRule::default()
        };
        let key = ("only".into(), "echo".into());
        settings.overrides.insert(key, vec![Arc::new(rule)]);
        self.settings.store(Arc::new(settings));
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
            takes_tasks: false,
        })
    }

    pub async fn ask(&self, caller: &Arc<Caller>, method: &str, params: Value) -> Outcome {
        self.ask_with(caller, method, params, Events::uncharged(256).0)
            .await
    }

    /// The result of a request that must succeed.
    pub async fn done(&self, caller: &Arc<Caller>, method: &str, params: Value) -> Value {
        parsed(&self.ask(caller, method, params).await)
    }

    pub async fn ask_with(
        &self,
        caller: &Arc<Caller>,
        method: &str,
        params: Value,
        events: Events,
    ) -> Outcome {
        let request = ClientRequest {
            caller: Arc::clone(caller),
            method: method.into(),
            params: Some(to_raw_value(&params).unwrap()),
            tool: None,
            trace: None,
            events,
        };
        Arc::clone(&self.core).request(request).await
    }

    /// Requests a list; returns the names, URIs or URI templates of its entries.
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

    /// Attaches a client; returns the attachment and its events.
    pub fn attach(
        &self,
        caller: &Arc<Caller>,
        interest: Interest,
    ) -> (Attachment, mpsc::Receiver<Event>) {
        let (sender, events) = Events::uncharged(256);
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
