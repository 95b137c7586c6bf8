//! Servers with scripted answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit, Container};
use addons::mcp::ServerSettings;
use parking_lot::Mutex;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::{Described, Event, Events, MountError, Outcome, Version};
use crate::mcp::mounts::{MountSession, Opening, Transport, Transports};

/// A message that was sent to a server.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub params: Value,
    /// The text of the params.
    pub text: String,
}

/// Answers a request that is not for a list.
type Answer = dyn Fn(Seen, Events) -> BoxFuture<'static, Outcome> + Send + Sync;

/// A scripted server.
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
    /// Number of attempts to open a session.
    pub attempts: AtomicUsize,
    /// Number of processes that were started because a lease began.
    pub early: AtomicUsize,
    /// The revision and the capabilities that each session declared about its clients.
    pub declared: Mutex<Vec<(Version, String)>>,
    pub cancelled: Arc<AtomicUsize>,
    /// Whether opening a session fails.
    pub is_down: Mutex<bool>,
    /// While true, opening a session does not complete.
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
            attempts: AtomicUsize::new(0),
            early: AtomicUsize::new(0),
            declared: Mutex::default(),
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

    /// The messages of one method that were sent to the server.
    pub fn sent(&self, method: &str) -> Vec<Seen> {
        let seen = self.seen.lock();
        seen.iter()
            .filter(|one| one.method == method)
            .cloned()
            .collect()
    }

    /// Sends a notification that belongs to no request.
    pub async fn notify(&self, method: &str, params: Value) {
        self.send(notification(method, params)).await;
    }

    /// Sends a message that belongs to no request.
    pub async fn send(&self, event: Event) {
        let events = self.unsolicited.lock().clone().unwrap();
        events.send(event).await;
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
        params: Some(to_raw_value(&params).unwrap().into()),
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
            server.attempts.fetch_add(1, Ordering::SeqCst);
            let declared = (opening.version, opening.capabilities.get().to_owned());
            server.declared.lock().push(declared);
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
                described: Described {
                    version: server.version,
                    capabilities,
                    server_info: None,
                    instructions: Some("Be kind.".to_owned()),
                },
                server,
                ended,
            });
            Ok(session)
        })
    }

    fn prepare(
        self: Arc<Self>,
        _container: Arc<Container>,
        _retired: CancellationToken,
    ) -> BoxFuture<'static, bool> {
        self.0.early.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { true })
    }
}

pub struct All(pub BTreeMap<Arc<str>, Arc<Server>>);

impl Transports for All {
    fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport> {
        Arc::new(Opens(Arc::clone(&self.0[&server.name])))
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
