//! `subscriptions/listen` at modern servers, on behalf of clients of either era.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Direction, Frame, McpTarget};
use addons::json::Members;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::watch;
use tokio::time::sleep;

use super::super::implementation::implementation;
use super::known_sessions::{KnownSession, Uris};
use super::lease::Lease;
use super::params::{Destination, SUBSCRIPTION_ID, edit};
use super::{Caller, Core, Event, List, Pooled};

/// The pause after a stream that delivered a notification. It doubles after each stream that
/// delivered none.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, and the pause after the chain denied a stream or the server refused it.
const MAX_PAUSE: Duration = Duration::from_secs(60);

impl Core {
    /// Opens, changes or ends the stream of a session; `filter` is `None` to end it.
    pub(super) fn listen(
        self: &Arc<Self>,
        known: &Arc<KnownSession>,
        pooled: &Arc<Pooled>,
        caller: &Arc<Caller>,
        filter: Option<Uris>,
    ) {
        let was_open = known.filter.borrow().is_some();
        let is_open = filter.is_some();
        known.filter.send_if_modified(|now| {
            let differs = *now != filter;
            *now = filter;
            differs
        });
        if is_open && !was_open {
            let (core, caller) = (Arc::clone(self), Arc::clone(caller));
            let (filter, pooled) = (known.filter.subscribe(), Arc::clone(pooled));
            self.runtime
                .spawn(async move { core.keep_listening(filter, pooled, caller).await });
        }
    }

    /// Keeps a stream open until its filter is removed or the session or the lease ends.
    async fn keep_listening(
        self: Arc<Self>,
        mut filter: watch::Receiver<Option<Uris>>,
        pooled: Arc<Pooled>,
        caller: Arc<Caller>,
    ) {
        let mut pause = FIRST_PAUSE;
        loop {
            let uris = filter.borrow_and_update().clone();
            let Some(uris) = uris else {
                return;
            };
            let end = tokio::select! {
                end = self.listen_as_permitted(&pooled, &caller, &uris) => end,
                changed = filter.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                () = pooled.session.ended().cancelled() => return,
                () = caller.container.ended().cancelled() => return,
            };
            pause = match end {
                StreamEnd::Used => FIRST_PAUSE,
                StreamEnd::Unused => (pause * 2).min(MAX_PAUSE),
                StreamEnd::Denied | StreamEnd::Refused => MAX_PAUSE,
            };
            tokio::select! {
                () = sleep(pause) => {}
                changed = filter.changed() => if changed.is_err() { return },
                () = pooled.session.ended().cancelled() => return,
                () = caller.container.ended().cancelled() => return,
            }
        }
    }

    /// Listens until the stream ends. If the chain denies a filter with URIs, listens without the
    /// URIs, only for changes of lists.
    async fn listen_as_permitted(
        self: &Arc<Self>,
        pooled: &Arc<Pooled>,
        caller: &Arc<Caller>,
        uris: &Uris,
    ) -> StreamEnd {
        match self.listen_once(pooled, caller, uris).await {
            StreamEnd::Denied if !uris.is_empty() => {
                self.listen_once(pooled, caller, &Uris::new()).await
            }
            end => end,
        }
    }

    /// Listens until the stream ends.
    async fn listen_once(
        self: &Arc<Self>,
        pooled: &Arc<Pooled>,
        caller: &Arc<Caller>,
        uris: &Uris,
    ) -> StreamEnd {
        let method: Arc<str> = "subscriptions/listen".into();
        let chain = (self.rules)().chain;
        let server = pooled.catalog.server();
        let mut live = self.flow(&chain, caller, &method, Some(server), None);
        let params = params_of(caller, pooled, uris);
        let target = McpTarget::Server(Arc::clone(server));
        let mut frame = Frame::request(Direction::ToServer, target, Arc::clone(&method), params);
        if !uris.is_empty() {
            frame.tools = self.server_tools(caller, server).await;
        }
        let permit = match chain.mcp_request(&mut live.flow, frame).await {
            Ok(permit) => permit,
            Err(denial) => {
                live.denied(&denial);
                return StreamEnd::Denied;
            }
        };
        let (sender, mut events) = pooled.unsolicited.another();
        let mut request = pooled.session.request(permit, sender);
        let mut end = StreamEnd::Unused;
        let outcome = loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => {
                    end = StreamEnd::Used;
                    self.changed(pooled, caller, event).await;
                }
                outcome = &mut request => break outcome,
            }
        };
        match outcome {
            Ok(Ok(_)) => {
                live.answered(200);
                live.complete();
            }
            Ok(Err(error)) => {
                live.answered(502);
                live.complete();
                tracing::debug!(%server, error = %error.message, "the MCP server refused subscriptions/listen");
                return StreamEnd::Refused;
            }
            Err(error) => live.denied(&error.into_denial(server)),
        }
        end
    }

    /// Handles one event of a stream.
    async fn changed(self: &Arc<Self>, pooled: &Pooled, caller: &Arc<Caller>, event: Event) {
        let Event::Notification { method, params } = event else {
            return;
        };
        if let Some(list) = List::of_notification(&method) {
            pooled.catalog.changed(list);
        } else if &*method == "notifications/resources/updated" {
            let lease = Lease::of(&caller.container);
            let clients = lease.attached_if(|caller| pooled.serves(caller));
            let params = params.map(|params| without_subscription(params.into_text()));
            self.updated(&clients, pooled.catalog.server(), params.as_deref())
                .await;
        }
    }
}

/// The params that subscribe to changes of all lists and of these resources.
fn params_of(caller: &Caller, pooled: &Pooled, uris: &Uris) -> Option<Box<RawValue>> {
    let uris: Vec<&str> = uris.iter().map(|uri| &**uri).collect();
    let filter = json!({"notifications": {
        "toolsListChanged": true,
        "promptsListChanged": true,
        "resourcesListChanged": true,
        "resourceSubscriptions": uris,
    }});
    // The gateway's own name, since the client's name is free text.
    let own = Caller {
        info: to_raw_value(&implementation()).ok().map(Arc::from),
        ..caller.without_session()
    };
    let destination = Destination {
        caller: &own,
        version: pooled.session.version(),
        log_level: None,
        trace: None,
    };
    let filter = to_raw_value(&filter).ok()?;
    destination.params(Some(&filter), &[], true)?.params
}

/// How a stream ended.
enum StreamEnd {
    /// After at least one notification.
    Used,
    /// Without a notification.
    Unused,
    /// The chain denied it.
    Denied,
    /// The server refused it.
    Refused,
}

/// Removes the id of the gateway's subscription from params.
fn without_subscription(params: Box<RawValue>) -> Box<RawValue> {
    let text = Members::read(&params).ok().and_then(|members| {
        let meta = Members::parse(members.get("_meta")?).ok()?;
        let meta = edit(&meta, &[(SUBSCRIPTION_ID, None)]);
        let meta = Some(&*meta).filter(|meta| *meta != "{}");
        Some(edit(&members, &[("_meta", meta)]))
    });
    text.and_then(|text| RawValue::from_string(text).ok())
        .unwrap_or(params)
}
