//! One request and its response, through the chain and back.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use addons::contract::{Cleared, Code, Denial, Flow, Kind, Request as Head};
use http::header::{CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;

use super::body::{DenialSlot, RequestBody, ResponseBody};
use super::connection::Connection;
use super::door::{Door, destination};
use super::drain::{Denied, drain};
use super::headers::{Upgrade, read_head, read_response_head};
use super::live::LiveFlow;
use super::outgoing::{
    Sent, not_answered, outgoing, request_broke_off, transmit, upstream_broke_off, within,
};
use super::permission::Permitted;
use super::reply::{self, Reply};
use super::upstream::{LeasePool, Target, Upstream, Want};
use super::{upstream, websocket, whole};
use crate::world::World;

/// Filtered bodies up to this size keep a length, if they are there at once.
const GATHERED: u64 = 16 * 1024;

/// Answers one request. Whatever goes wrong is an answer too.
pub async fn handle(
    connection: Arc<Connection>,
    door: Arc<Door>,
    request: Request<Incoming>,
) -> Response<Reply> {
    connection.activity.begin();
    let close_after = connection.container.is_none() || connection.refusal.is_some();
    let http1 = request.version() < Version::HTTP_2;
    let mut exchange = Exchange::begin(connection, &door, &request);
    let answered = exchange.run(&door, request).await;
    let response = match answered {
        Ok(response) => response,
        Err(denial) => exchange.deny(&denial),
    };
    if close_after && http1 {
        reply::closing(response)
    } else {
        response
    }
}

/// The state of one exchange; the flow leaves it with the response's body.
struct Exchange {
    connection: Arc<Connection>,
    world: Arc<World>,
    live: Option<Box<LiveFlow>>,
    malformed: Option<Denial>,
}

/// What is ready to be sent.
struct Prepared {
    /// Until it is sent.
    request: Option<Request<RequestBody>>,
    denied: Option<DenialSlot>,
    cleared: Cleared,
    target: Target,
    want: Want,
    version: Version,
    websocket: Option<websocket::Opening>,
}

/// What a denial leaves unread of a request.
struct Unread {
    body: Incoming,
    /// Reading on would ask for a body that has not been sent yet.
    unasked: bool,
}

impl Unread {
    /// Reads on beside the answer, so that a client that is still writing sees it.
    fn denied(self, denial: Denial) -> Denial {
        if !self.unasked && !self.body.is_end_stream() {
            tokio::spawn(drain(self.body, &denial));
        }
        denial
    }
}

impl Exchange {
    fn begin(connection: Arc<Connection>, door: &Door, request: &Request<Incoming>) -> Self {
        let world = connection.engine.world();
        let (scheme, authority, malformed) = match destination(door, request) {
            Ok((scheme, authority)) => (scheme, authority, None),
            Err(denial) => {
                let (scheme, asked) = door.destination();
                (scheme, asked, Some(denial))
            }
        };
        let mut flow: Flow = world.flow(
            Kind::Http,
            connection.client.clone(),
            scheme,
            authority.host,
            authority.port,
        );
        flow.principal = connection.principal();
        flow.record.method = Some(name_of(request.method()));
        if matches!(door, Door::Plain) {
            *connection.in_hand.lock() = Some(Permitted::of(&flow, &world));
        }
        let live = LiveFlow::new(flow, Arc::clone(&world.chain));
        Self {
            connection,
            world,
            live: Some(Box::new(live)),
            malformed,
        }
    }

    /// Takes the request through the chain, sends it, and takes the response back through it.
    /// Nothing is looked up or dialled before the chain has cleared it.
    async fn run(
        &mut self,
        door: &Door,
        request: Request<Incoming>,
    ) -> Result<Response<Reply>, Denial> {
        let (mut parts, body) = request.into_parts();
        let on_upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let unread = Unread {
            body,
            unasked: parts.headers.contains_key(EXPECT),
        };
        let mut head = match self.read(&mut parts, on_upgrade.is_some()) {
            Ok(head) => head,
            Err(denial) => return Err(unread.denied(denial)),
        };
        let cleared = match self.judge(door, &mut head).await {
            Ok(cleared) => cleared,
            Err(denial) => return Err(unread.denied(denial)),
        };
        let mut body = self.body_of(&mut head, unread).await?;
        if let Err(error) = body.prime().await {
            return Err(match take_denied(body.denial_slot().as_ref()) {
                Some(denied) => denied.when_due(parts.version).await,
                None => request_broke_off(&error),
            });
        }
        let mut prepared = self.prepare(&parts, head, body, cleared, on_upgrade)?;
        self.send(&mut prepared).await
    }

    /// Reads the head, unless something is wrong before it is read.
    fn read(&mut self, parts: &mut Parts, upgradable: bool) -> Result<Head, Denial> {
        let refusal = self.connection.refusal.clone().or(self.malformed.take());
        let live = self.live.as_deref_mut().ok_or_else(Denial::internal)?;
        if let Some(refusal) = refusal {
            return Err(refusal.by("proxy"));
        }
        let (head, upgrade) = read_head(parts).map_err(|denial| denial.by("proxy"))?;
        live.flow.record.path = Some(head.path.normal().into());
        if upgrade == Upgrade::Other || (head.websocket && !upgradable) {
            let sentence = "Protocol not allowed: only WebSocket upgrades pass";
            return Err(Denial::new(Code::ProtocolNotAllowed, sentence).by("proxy"));
        }
        if head.websocket {
            live.flow.kind = Kind::Websocket;
        }
        Ok(head)
    }

    async fn judge(&mut self, door: &Door, head: &mut Head) -> Result<Cleared, Denial> {
        let live = self.live.as_deref_mut().ok_or_else(Denial::internal)?;
        let chain = &self.world.chain;
        if matches!(door, Door::Plain) {
            chain.tunnel(&mut live.flow).await?;
        }
        let cleared = chain.request(&mut live.flow, head).await?;
        self.connection.is_bound(&live.flow)?;
        if live.flow.record.path.as_deref() != Some(head.path.normal()) {
            live.flow.record.path = Some(head.path.normal().into());
        }
        Ok(cleared)
    }

    /// The body to send: as it streams, or read and judged where an addon asked for that.
    async fn body_of(&self, head: &mut Head, unread: Unread) -> Result<RequestBody, Denial> {
        let activity = &self.connection.activity;
        let live = self.live.as_deref().ok_or_else(Denial::internal)?;
        let counters = &live.flow.counters;
        let Some(whole) = head.take_whole() else {
            let filters = head.take_filters();
            return Ok(RequestBody::new(unread.body, filters, counters, activity));
        };
        let Unread { mut body, unasked } = unread;
        let chain = &self.world.chain;
        let judging = whole::judge(head, &mut body, whole, chain, counters, activity);
        // Few requests are judged whole, and all of them would carry the room for it.
        let judged = Box::pin(judging).await;
        match judged {
            Ok(held) => {
                let filters = head.take_filters();
                Ok(RequestBody::held(held, filters, counters, activity))
            }
            Err(denial) => Err(Unread { body, unasked }.denied(denial.by("proxy"))),
        }
    }

    fn prepare(
        &self,
        parts: &Parts,
        mut head: Head,
        body: RequestBody,
        cleared: Cleared,
        on_upgrade: Option<hyper::upgrade::OnUpgrade>,
    ) -> Result<Prepared, Denial> {
        let live = self.live.as_deref().ok_or_else(Denial::internal)?;
        if !body.keeps_length() {
            head.headers.remove(CONTENT_LENGTH);
        }
        let websocket = match on_upgrade.filter(|_| head.websocket) {
            Some(client) => Some(websocket::Opening::new(client, &head.headers, &body)?),
            None => None,
        };
        let want = match parts.version {
            _ if head.websocket => Want::Websocket,
            Version::HTTP_2 => Want::Http2,
            _ => Want::Http1,
        };
        Ok(Prepared {
            denied: body.denial_slot(),
            request: Some(outgoing(head, body, parts.uri.path_and_query())?),
            cleared,
            target: Target {
                scheme: live.flow.scheme,
                host: live.flow.host.clone(),
                port: live.flow.port,
            },
            want,
            version: parts.version,
            websocket,
        })
    }

    async fn send(&mut self, prepared: &mut Prepared) -> Result<Response<Reply>, Denial> {
        let mut fresh_tries = 0;
        loop {
            let target = &prepared.target;
            let mut upstream = self
                .acquire(&prepared.cleared, target, prepared.want)
                .await?;
            let request = prepared.request.take().ok_or_else(Denial::internal)?;
            let sent = self.transmit(&mut upstream, request, target).await?;
            match sent {
                Ok(response) => return self.answer(response, upstream, prepared).await,
                Err(mut error) => {
                    if let Some(denied) = take_denied(prepared.denied.as_ref()) {
                        return Err(denied.when_due(prepared.version).await);
                    }
                    // The connection was closed before a byte of the request went out: that is
                    // no fault of either side, and nothing was sent twice.
                    match error.take_message() {
                        Some(unsent) if fresh_tries < 2 => {
                            fresh_tries += 1;
                            prepared.request = Some(unsent);
                        }
                        _ => {
                            // The lease's end closes its upstream connections too.
                            self.connection.is_live()?;
                            return Err(upstream_broke_off(&target.host, error.error()));
                        }
                    }
                }
            }
        }
    }

    /// Sends the request and waits for the head of its answer, as long as an answer may take.
    async fn transmit(
        &self,
        upstream: &mut Upstream,
        request: Request<RequestBody>,
        target: &Target,
    ) -> Result<Sent, Denial> {
        let mut timer = upstream.timer().and_then(Option::take);
        let limit = self.world.config.proxy.upstream.response_timeout;
        let live = self.live.as_deref().ok_or_else(Denial::internal)?;
        let activity = &self.connection.activity;
        let sent = {
            let sending = pin!(transmit(upstream, request, target));
            within(limit, activity, live, &mut timer, sending).await?
        };
        if let Some(kept) = upstream.timer() {
            *kept = timer;
        }
        Ok(sent)
    }

    async fn acquire(
        &mut self,
        cleared: &Cleared,
        target: &Target,
        want: Want,
    ) -> Result<Upstream, Denial> {
        let world = &self.world;
        if want != Want::Websocket {
            while let Some(mut kept) = self.connection.take_kept(world.epoch, target) {
                if upstream::ready(&mut kept).await {
                    let live = self.live.as_deref_mut().ok_or_else(Denial::internal)?;
                    live.flow.record.upstream = Some(kept.address);
                    return Ok(Upstream::Http1(kept));
                }
            }
        }
        let live = self.live.as_deref_mut().ok_or_else(Denial::internal)?;
        let container = Arc::clone(live.flow.container()?);
        let pool = LeasePool::of(&container, world);
        // Room for a handshake: kilobytes, which the future of every request would have to carry.
        let upstream = Box::pin(pool.acquire(world, live, cleared, target, want)).await?;
        live.flow.record.upstream = Some(match &upstream {
            Upstream::Http1(one) => one.address,
            Upstream::Http2(one) => one.address,
        });
        Ok(upstream)
    }

    async fn answer(
        &mut self,
        mut response: Response<Incoming>,
        mut upstream: Upstream,
        prepared: &mut Prepared,
    ) -> Result<Response<Reply>, Denial> {
        let target = &prepared.target;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(opening) = prepared.websocket.take() else {
                return Err(not_answered(&target.host, "switched protocols unasked"));
            };
            // What it is now relayed by does not poll HTTP.
            upstream.detach();
            let mut accepted = opening.accept(&mut response, &target.host)?;
            // The head passes the chain like any other; what follows is no body to filter.
            let headers = std::mem::take(&mut accepted.headers);
            let mut head = addons::contract::Response::new(response.status(), headers);
            let chain = &self.world.chain;
            let live = self.live.as_deref_mut().ok_or_else(Denial::internal)?;
            chain.response(&mut live.flow, &mut head).await?;
            accepted.headers = head.headers;
            let live = self.live.take().ok_or_else(Denial::internal)?;
            let permitted = Permitted::of(&live.flow, &self.world);
            return Ok(accepted.relay(Arc::clone(&self.connection), live, permitted));
        }
        let (mut parts, body) = response.into_parts();
        read_response_head(&mut parts).map_err(|why| not_answered(&target.host, why))?;
        let headers = std::mem::take(&mut parts.headers);
        let mut head = addons::contract::Response::new(parts.status, headers);
        let chain = &self.world.chain;
        let live = self.live.as_deref_mut().ok_or_else(Denial::internal)?;
        chain.response(&mut live.flow, &mut head).await?;
        live.answered(head.status.as_u16());
        let live = self.live.take().ok_or_else(Denial::internal)?;
        // An answer to HEAD, a 204 or a 304: there is nothing to filter, and a length that the
        // head names stays true.
        let filters = if body.is_end_stream() {
            Vec::new()
        } else {
            head.take_filters()
        };
        let announced = body.size_hint().exact();
        let connection = Arc::clone(&self.connection);
        let mut body = ResponseBody::new(body, upstream, filters, live, connection);
        if !body.keeps_length() {
            let is_short = announced.is_some_and(|length| length <= GATHERED);
            match if is_short { body.gather().await } else { None } {
                Some(length) if Some(length) == announced => {}
                Some(length) => _ = head.headers.insert(CONTENT_LENGTH, length.into()),
                None => _ = head.headers.remove(CONTENT_LENGTH),
            }
        }
        let mut response = Response::new(Reply::Theirs(body));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }

    fn deny(&mut self, denial: &Denial) -> Response<Reply> {
        let Some(mut live) = self.live.take() else {
            return reply::empty(StatusCode::INTERNAL_SERVER_ERROR);
        };
        self.connection.activity.end();
        live.denied(denial);
        let mut response = reply::denied(denial, live.flow.id);
        if denial.code() == Code::MethodNotAllowed {
            let allow = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
            response.headers_mut().insert(http::header::ALLOW, allow);
        }
        response
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Given up in the middle: the client or the lease is gone.
        if self.live.is_some() {
            self.connection.activity.end();
        }
    }
}

/// A usual method's name costs nothing.
fn name_of(method: &Method) -> Cow<'static, str> {
    let usual = match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => return method.as_str().to_owned().into(),
    };
    usual.into()
}

fn take_denied(slot: Option<&DenialSlot>) -> Option<Denied> {
    slot?.lock().take()
}
