//! Messages of servers that belong to no request, and of clients that are no requests.

use std::sync::{Arc, Weak};

use addons::contract::{BoxFuture, Container, Direction, Frame};
use addons::raw_json::Members;
use serde_json::value::RawValue;

use super::attached::Attached;
use super::lease::Lease;
use super::params::Destination;
use super::relay::{Relay, can, severity};
use super::{Caller, Core, Event, Origin, Unsolicited, method_not_found};

impl Unsolicited for Core {
    fn take<'a>(&'a self, origin: &'a Origin, event: Event) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(core) = self.me.upgrade() else {
                return;
            };
            match &origin.container {
                Some(container) => core.unrelated(origin, container, event).await,
                None => core.shared(origin, event).await,
            }
        })
    }
}

impl Core {
    /// What a session that several containers share says to nobody in particular may be about any
    /// of them: only updates are passed on, to those who follow the resource.
    async fn shared(self: &Arc<Self>, origin: &Origin, event: Event) {
        let Event::Notification { method, params } = event else {
            return refuse(event);
        };
        if &*method != "notifications/resources/updated" {
            return;
        }
        let leases: Vec<_> = self
            .watched
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let server = Arc::clone(&origin.mount.settings().name);
        for lease in leases {
            self.updated(&like(&lease, origin), &server, params.clone())
                .await;
        }
    }

    async fn unrelated(
        self: &Arc<Self>,
        origin: &Origin,
        container: &Arc<Container>,
        event: Event,
    ) {
        let server = Arc::clone(&origin.mount.settings().name);
        let like = like(Lease::of(container), origin);
        match event {
            Event::Notification { method, params } => match &*method {
                "notifications/resources/updated" => self.updated(&like, &server, params).await,
                "notifications/message" => {
                    let level = severity(params.as_deref());
                    let takers = like.into_iter().filter(|one| one.takes_log(level));
                    self.broadcast(takers.collect(), &server, &method, params)
                        .await;
                }
                "notifications/elicitation/complete" => {
                    let takers = like.into_iter().filter(|one| one.takes_unrelated());
                    self.broadcast(takers.collect(), &server, &method, params)
                        .await;
                }
                _ => {}
            },
            Event::Request {
                method,
                params,
                reply,
            } => {
                let mut able = like.iter().rev();
                let newest = able.find(|one| one.takes_unrelated() && can(&one.caller, &method));
                match newest {
                    Some(newest) => {
                        self.ask_client(newest, &server, method, params, reply)
                            .await
                    }
                    None => refuse(Event::Request {
                        method,
                        params,
                        reply,
                    }),
                }
            }
        }
    }

    /// Tells clients that a resource changed, those that follow it.
    pub(super) async fn updated(
        self: &Arc<Self>,
        clients: &[Arc<Attached>],
        server: &Arc<str>,
        params: Option<Box<RawValue>>,
    ) {
        let members = params
            .as_deref()
            .and_then(|params| Members::read(params).ok());
        let Some(uri) = members.and_then(|members| Some(members.text("uri")?.into_owned())) else {
            return;
        };
        let followers = clients.iter().filter(|one| one.follows(&uri));
        let method = "notifications/resources/updated";
        self.broadcast(followers.cloned().collect(), server, &method.into(), params)
            .await;
    }

    /// Judges a notification for each client, and passes it on.
    async fn broadcast(
        self: &Arc<Self>,
        clients: Vec<Arc<Attached>>,
        server: &Arc<str>,
        method: &Arc<str>,
        params: Option<Box<RawValue>>,
    ) {
        let chain = (self.rules)().chain;
        for client in clients {
            let mut live = self.flow(&chain, &client.caller, method, Some(server), None);
            let frame = Frame::notification(Direction::ToClient, method, params.clone());
            match chain.mcp_request(&mut live.flow, frame).await {
                Ok(permit) => {
                    let params = permit.params().map(ToOwned::to_owned);
                    client.send(Event::Notification {
                        method: Arc::clone(method),
                        params,
                    });
                    live.answered(200);
                    live.complete();
                }
                Err(denial) => live.denied(&denial),
            }
        }
    }

    /// Asks a client what a server wants to know, beside other work.
    async fn ask_client(
        self: &Arc<Self>,
        client: &Arc<Attached>,
        server: &Arc<str>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
        reply: tokio::sync::oneshot::Sender<super::Outcome>,
    ) {
        let chain = (self.rules)().chain;
        let relay = Relay {
            core: self,
            chain: &chain,
            caller: &client.caller,
            server,
            client: client.events(),
            definition: None,
            progress: None,
        };
        let event = Event::Request {
            method,
            params,
            reply,
        };
        let ended = client.caller.container.ended().clone();
        if let Some(asking) = relay.pass_on(event, client.asked()).await {
            let asked = client.ask();
            self.runtime.spawn(async move {
                ended.run_until_cancelled_owned(asking).await;
                drop(asked);
            });
        }
    }

    /// Takes a client's notification. Servers are told of changed roots; nothing else concerns
    /// them.
    pub async fn notify(
        self: Arc<Self>,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    ) {
        let (caller, method, params) = (&caller, &method, params.as_deref());
        if &**method != "notifications/roots/list_changed" {
            return;
        }
        let chain = (self.rules)().chain;
        for (known, pooled) in Lease::of(&caller.container).sessions.open(caller) {
            let Some(mount) = known.mount.upgrade() else {
                continue;
            };
            let destination = Destination {
                caller,
                version: pooled.session.version(),
                log_level: None,
            };
            let Some(made) = destination.params(params, &[], false) else {
                return;
            };
            let server = &mount.settings().name;
            let mut live = self.flow(&chain, caller, method, Some(server), None);
            let frame = Frame::notification(Direction::ToServer, method, made.params);
            let judged = chain.mcp_request(&mut live.flow, frame).await;
            let sent = match judged {
                Ok(permit) => {
                    let sent = pooled.session.notify(permit).await;
                    sent.map_err(|error| error.into_denial(server))
                }
                Err(denial) => Err(denial),
            };
            match sent {
                Ok(()) => {
                    live.answered(200);
                    live.complete();
                }
                Err(denial) => live.denied(&denial),
            }
        }
    }
}

/// The attached clients that a session was opened for.
fn like(lease: &Lease, origin: &Origin) -> Vec<Arc<Attached>> {
    let is_like = |one: &&Arc<Attached>| {
        let caller = &one.caller;
        caller.version == origin.version && caller.capabilities.get() == origin.capabilities.get()
    };
    let attached = lease.attached.lock();
    attached.iter().filter(is_like).cloned().collect()
}

/// Tells a server that nobody answers its request.
fn refuse(event: Event) {
    if let Event::Request { method, reply, .. } = event {
        // It may have given up.
        let _ = reply.send(Err(method_not_found(&method)));
    }
}
