//! Messages of servers that belong to no request, and notifications of clients.

use std::sync::{Arc, Weak};

use addons::contract::{BoxFuture, Container, Direction, Frame, McpTarget};
use addons::json::Members;
use serde_json::value::RawValue;

use super::attached::Attached;
use super::lease::Lease;
use super::params::{Change, Destination, PROGRESS_TOKEN};
use super::relay::{Relay, can_answer, severity};
use super::{Caller, Core, Event, MountSession, Origin, Unsolicited, method_not_found, record_end};

impl Unsolicited for Core {
    fn take(self: Arc<Self>, origin: &Origin, event: Event) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match &origin.container {
                Some(container) => self.take_of_lease(origin, container, event).await,
                None => self.take_shared(origin, event).await,
            }
        })
    }
}

impl Core {
    /// Handles a message of a shared session. The message may concern any container, so only
    /// resource updates are relayed, and only to the clients that subscribed to the resource.
    async fn take_shared(self: &Arc<Self>, origin: &Origin, event: Event) {
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
            let clients = lease.attached_if(|caller| origin.serves(caller));
            self.updated(&clients, &server, params.as_deref()).await;
        }
    }

    /// Handles a message of a lease's session. A request goes to the most recently attached of the
    /// clients that can answer it.
    async fn take_of_lease(
        self: &Arc<Self>,
        origin: &Origin,
        container: &Arc<Container>,
        event: Event,
    ) {
        let server = Arc::clone(&origin.mount.settings().name);
        let lease = Lease::of(container);
        let clients = lease.attached_if(|caller| origin.serves(caller));
        match event {
            Event::Notification { method, params } => match &*method {
                "notifications/resources/updated" => {
                    self.updated(&clients, &server, params.as_deref()).await
                }
                "notifications/message" => {
                    let level = severity(params.as_deref());
                    let takers = clients.into_iter().filter(|one| one.takes_log(level));
                    self.broadcast(takers.collect(), &server, &method, params.as_deref())
                        .await;
                }
                "notifications/elicitation/complete" => {
                    let takers = clients.into_iter().filter(|one| one.takes_unrelated());
                    self.broadcast(takers.collect(), &server, &method, params.as_deref())
                        .await;
                }
                _ => {}
            },
            Event::Request {
                method,
                params,
                reply,
            } => {
                let can_answer_it = |one: &&Arc<Attached>| {
                    one.takes_unrelated() && can_answer(&one.caller, &method)
                };
                let newest = clients.iter().rev().find(can_answer_it);
                let request = Event::Request {
                    method,
                    params,
                    reply,
                };
                match newest {
                    Some(newest) => self.request_input(newest, origin, request).await,
                    None => refuse(request),
                }
            }
        }
    }

    /// Relays a resource update to the clients that subscribed to the resource.
    pub(super) async fn updated(
        self: &Arc<Self>,
        clients: &[Arc<Attached>],
        server: &Arc<str>,
        params: Option<&RawValue>,
    ) {
        let members = params.and_then(|params| Members::read(params).ok());
        let Some(uri) = members.and_then(|members| Some(members.text("uri")?.into_owned())) else {
            return;
        };
        let followers = clients.iter().filter(|one| one.follows(&uri));
        let method = "notifications/resources/updated";
        self.broadcast(followers.cloned().collect(), server, &method.into(), params)
            .await;
    }

    /// Judges a notification for each client, and relays it.
    async fn broadcast(
        self: &Arc<Self>,
        clients: Vec<Arc<Attached>>,
        server: &Arc<str>,
        method: &Arc<str>,
        params: Option<&RawValue>,
    ) {
        let chain = (self.rules)().chain;
        for client in clients {
            let mut live = self.flow(&chain, &client.caller, method, Some(server), None);
            let frame = Frame::notification(
                Direction::ToClient,
                McpTarget::Server(Arc::clone(server)),
                Arc::clone(method),
                params.map(ToOwned::to_owned),
            );
            let judged = chain.mcp_request(&mut live.flow, frame).await;
            record_end(&mut live, &judged);
            if let Ok(permit) = judged {
                client.send(Event::Notification {
                    method: Arc::clone(method),
                    params: permit.params().map(|text| text.to_owned().into()),
                });
            }
        }
    }

    /// Relays a request of a server to a client; a new task waits for the answer.
    async fn request_input(
        self: &Arc<Self>,
        client: &Arc<Attached>,
        origin: &Origin,
        request: Event,
    ) {
        let chain = (self.rules)().chain;
        let relay = Relay {
            core: self,
            chain: &chain,
            caller: &client.caller,
            server: &origin.mount.settings().name,
            client: &client.events,
            definition: None,
            progress: None,
            session: Some(&origin.session),
        };
        let ended = client.caller.container.ended().clone();
        if let Some(input_request) = relay.pass_on(request, client.open_request_count()).await {
            let counted = Arc::clone(&client.open_requests);
            self.runtime.spawn(async move {
                ended.run_until_cancelled_owned(input_request).await;
                drop(counted);
            });
        }
    }

    /// Handles a client's notification. Relays a change of the client's roots to the open sessions
    /// for clients with the caller's revision and capabilities. Relays progress to the server whose
    /// request the progress is about. Drops other notifications.
    pub async fn notify(
        self: Arc<Self>,
        caller: Arc<Caller>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    ) {
        let (caller, params) = (&caller, params.as_deref());
        match (&*method, params) {
            ("notifications/roots/list_changed", _) => {
                for (known, pooled) in Lease::of(&caller.container).sessions.open(caller) {
                    if let Some(mount) = known.mount.upgrade() {
                        let (server, session) = (&mount.settings().name, &*pooled.session);
                        self.tell_server(caller, server, session, (&method, params), &[])
                            .await;
                    }
                }
            }
            ("notifications/progress", Some(params)) => {
                let receivers = &Lease::of(&caller.container).progress_receivers;
                if let Some((receiver, token)) = receivers.find(caller, params) {
                    let (server, session) = (&receiver.server, &*receiver.session);
                    let changes = [(PROGRESS_TOKEN, Some(&*token))];
                    self.tell_server(caller, server, session, (&method, Some(params)), &changes)
                        .await;
                }
            }
            _ => {}
        }
    }

    /// Judges a client's notification and sends it to a server.
    pub(super) async fn tell_server(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        server: &Arc<str>,
        session: &dyn MountSession,
        (method, params): (&Arc<str>, Option<&RawValue>),
        changes: &[Change<'_>],
    ) {
        let destination = Destination {
            caller,
            version: session.version(),
            log_level: None,
            trace: None,
        };
        let Some(made) = destination.params(params, changes, false) else {
            return;
        };
        let chain = (self.rules)().chain;
        let mut live = self.flow(&chain, caller, method, Some(server), None);
        let (direction, target) = (Direction::ToServer, McpTarget::Server(Arc::clone(server)));
        let mut frame = Frame::notification(direction, target, Arc::clone(method), made.params);
        frame.tools = self.server_tools(caller, server).await;
        let sent = async {
            let permit = chain.mcp_request(&mut live.flow, frame).await?;
            let sent = session.notify(permit).await;
            sent.map_err(|error| error.into_denial(server))
        };
        let sent = sent.await;
        record_end(&mut live, &sent);
    }
}

/// Refuses a request of a server; drops a notification.
fn refuse(event: Event) {
    if let Event::Request { method, reply, .. } = event {
        // The server may have given up.
        let _ = reply.send(Err(method_not_found(&method)));
    }
}
