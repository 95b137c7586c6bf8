//! One request and its response, through the chain and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use addons::contract::{
    Authority, Cleared, Code, Denial, Flow, Host, Kind, Request as Head, Scheme,
};
use http::header::{CONTENT_LENGTH, EXPECT, HOST};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::body::{BodyError, DenialSlot, RequestBody, ResponseBody};
use super::connection::Connection;
use super::drain::drain;
use super::headers::{Upgrade, read_head, strip_hop_by_hop};
use super::live::LiveFlow;
use super::reply::{self, Reply};
use super::upstream::{LeasePool, Target, Upstream, Want};
use super::{upstream, websocket};
use crate::world::World;

/// How requests on a connection say where they go.
#[derive(Clone, Debug)]
pub enum Door {
    /// In the request line, in absolute form.
    Plain,
    /// All to the authority of the tunnel.
    Tunnel {
        authority: Authority,
        scheme: Scheme,
    },
}

/// Answers one request. Whatever goes wrong is an answer too.
pub async fn handle(
    connection: Arc<Connection>,
    door: Arc<Door>,
    request: Request<Incoming>,
) -> Response<Reply> {
    connection.activity.begin();
    let world = connection.engine.world();
    let close_after = connection.container.is_none() || connection.refusal.is_some();
    let (parts, body) = request.into_parts();
    let http1 = parts.version < Version::HTTP_2;
    let mut exchange = Exchange::begin(connection, world, &door, &parts);
    let answered = exchange.run(&door, parts, body).await;
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
    head: Head,
    body: RequestBody,
    cleared: Cleared,
    target: Target,
    version: Version,
    websocket: Option<hyper::upgrade::OnUpgrade>,
}

impl Exchange {
    fn begin(connection: Arc<Connection>, world: Arc<World>, door: &Door, parts: &Parts) -> Self {
        let named = destination(door, parts);
        let (scheme, authority, malformed) = match named {
            Ok((scheme, authority)) => (scheme, authority, None),
            Err(denial) => {
                let nowhere = Authority {
                    host: Host::Name("".into()),
                    port: 0,
                };
                let asked = match door {
                    Door::Tunnel { authority, .. } => authority.clone(),
                    Door::Plain => nowhere,
                };
                (Scheme::Http, asked, Some(denial))
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
        flow.record.method = Some(parts.method.as_str().into());
        let live = LiveFlow::new(flow, Arc::clone(&world.chain));
        Self {
            connection,
            world,
            live: Some(Box::new(live)),
            malformed,
        }
    }

    async fn run(
        &mut self,
        door: &Door,
        mut parts: Parts,
        body: Incoming,
    ) -> Result<Response<Reply>, Denial> {
        let on_upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let prepared = self.prepare(door, parts, body, on_upgrade).await?;
        self.send(prepared).await
    }

    fn live(&mut self) -> Result<&mut LiveFlow, Denial> {
        self.live.as_deref_mut().ok_or_else(Denial::internal)
    }

    /// Takes the request through the chain; nothing has been looked up or dialled afterwards.
    async fn prepare(
        &mut self,
        door: &Door,
        parts: Parts,
        body: Incoming,
        on_upgrade: Option<hyper::upgrade::OnUpgrade>,
    ) -> Result<Prepared, Denial> {
        let version = parts.version;
        // Reading on would ask for a body that has not been sent yet.
        let unasked = parts.headers.contains_key(EXPECT);
        let judged = self.judge(door, parts, on_upgrade.is_some()).await;
        let (mut head, cleared) = match judged {
            Ok(judged) => judged,
            Err(denial) if unasked => return Err(denial),
            Err(denial) => {
                drain(body, &denial);
                return Err(denial);
            }
        };
        let activity = Arc::clone(&self.connection.activity);
        let live = self.live()?;
        let counters = Arc::clone(&live.flow.counters);
        let mut body = RequestBody::new(body, head.take_filters(), counters, activity);
        body.prime().await.map_err(request_broke_off)?;
        if !body.keeps_length() {
            head.headers.remove(CONTENT_LENGTH);
        }
        let target = Target {
            scheme: live.flow.scheme,
            host: live.flow.host.clone(),
            port: live.flow.port,
        };
        let websocket = on_upgrade.filter(|_| head.websocket);
        Ok(Prepared {
            head,
            body,
            cleared,
            target,
            version,
            websocket,
        })
    }

    async fn judge(
        &mut self,
        door: &Door,
        parts: Parts,
        upgradable: bool,
    ) -> Result<(Head, Cleared), Denial> {
        let connection = Arc::clone(&self.connection);
        let refusal = connection.refusal.clone().or(self.malformed.take());
        let live = self.live()?;
        if let Some(refusal) = refusal {
            return Err(refusal.by("proxy"));
        }
        let (mut head, upgrade) = read_head(parts).map_err(|denial| denial.by("proxy"))?;
        live.flow.record.path = Some(head.path.normal().into());
        if upgrade == Upgrade::Other || (head.websocket && !upgradable) {
            let sentence = "Protocol not allowed: only WebSocket upgrades pass";
            return Err(Denial::new(Code::ProtocolNotAllowed, sentence).by("proxy"));
        }
        if head.websocket {
            live.flow.kind = Kind::Websocket;
        }
        let chain = live.chain();
        if matches!(door, Door::Plain) {
            chain.tunnel(&mut live.flow).await?;
        }
        let cleared = chain.request(&mut live.flow, &mut head).await?;
        connection.is_bound(&live.flow)?;
        live.flow.record.path = Some(head.path.normal().into());
        Ok((head, cleared))
    }

    async fn send(&mut self, prepared: Prepared) -> Result<Response<Reply>, Denial> {
        let Prepared {
            head,
            body,
            cleared,
            target,
            version,
            websocket,
        } = prepared;
        let slot = body.denial_slot();
        let want = match version {
            _ if head.websocket => Want::Websocket,
            Version::HTTP_2 => Want::Http2,
            _ => Want::Http1,
        };
        let mut request = outgoing(head, body, &target)?;
        let mut fresh_tries = 0;
        loop {
            let upstream = self.acquire(&cleared, &target, want).await?;
            let wait = self.world.config.proxy.upstream.response_timeout;
            let live = self.live.as_deref().ok_or_else(Denial::internal)?;
            let (sent, upstream) = within(wait, live, transmit(upstream, request, &target)).await?;
            match sent {
                Ok(response) => return self.answer(response, upstream, target, websocket).await,
                Err(mut error) => {
                    if let Some(denial) = slot.as_ref().and_then(take_denial) {
                        return Err(denial);
                    }
                    // The connection was closed before a byte of the request went out: that is
                    // no fault of either side, and nothing was sent twice.
                    match error.take_message() {
                        Some(unsent) if fresh_tries < 2 => {
                            fresh_tries += 1;
                            request = unsent;
                        }
                        _ => return Err(upstream_broke_off(&target.host, error.error())),
                    }
                }
            }
        }
    }

    async fn acquire(
        &mut self,
        cleared: &Cleared,
        target: &Target,
        want: Want,
    ) -> Result<Upstream, Denial> {
        let world = Arc::clone(&self.world);
        if want != Want::Websocket {
            while let Some(kept) = self.connection.take_kept(world.epoch, target) {
                if let Some(kept) = upstream::ready(kept).await {
                    self.live()?.flow.record.upstream = Some(kept.address);
                    return Ok(Upstream::Http1(kept));
                }
            }
        }
        let live = self.live.as_deref_mut().ok_or_else(Denial::internal)?;
        let container = Arc::clone(live.flow.container()?);
        let pool = LeasePool::of(&container, &world);
        let upstream = pool.acquire(&world, live, cleared, target, want).await?;
        live.flow.record.upstream = Some(match &upstream {
            Upstream::Http1(one) => one.address,
            Upstream::Http2(one) => one.address,
        });
        Ok(upstream)
    }

    async fn answer(
        &mut self,
        mut response: Response<Incoming>,
        upstream: Upstream,
        target: Target,
        websocket: Option<hyper::upgrade::OnUpgrade>,
    ) -> Result<Response<Reply>, Denial> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = websocket else {
                let sentence = format!("{} switched protocols unasked", target.host);
                return Err(
                    Denial::new(Code::UpstreamUnreachable, sentence).with("step", "response")
                );
            };
            let accepted = websocket::accept(&mut response, &target.host)?;
            let live = self.live.take().ok_or_else(Denial::internal)?;
            return Ok(websocket::relay(
                Arc::clone(&self.connection),
                live,
                accepted,
                client,
            ));
        }
        let (mut parts, body) = response.into_parts();
        strip_hop_by_hop(&mut parts.headers);
        let headers = std::mem::take(&mut parts.headers);
        let mut head = addons::contract::Response::new(parts.status, headers);
        let live = self.live()?;
        let chain = live.chain();
        chain.response(&mut live.flow, &mut head).await?;
        live.answered(head.status.as_u16());
        let live = self.live.take().ok_or_else(Denial::internal)?;
        let on_end = self.keeper(upstream, target);
        // An answer to HEAD, a 204 or a 304: there is nothing to filter, and a length that the
        // head names stays true.
        let filters = if body.is_end_stream() {
            Vec::new()
        } else {
            head.take_filters()
        };
        let activity = Arc::clone(&self.connection.activity);
        let body = ResponseBody::new(body, filters, live, activity, on_end);
        if !body.keeps_length() {
            head.headers.remove(CONTENT_LENGTH);
        }
        let mut response = Response::new(Reply::Theirs(Box::new(body)));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }

    /// What puts the connection back once the response has been read to its end.
    fn keeper(&self, upstream: Upstream, target: Target) -> super::body::OnEnd {
        let connection = Arc::downgrade(&self.connection);
        let epoch = self.world.epoch;
        Box::new(move || {
            if let (Upstream::Http1(one), Some(connection)) = (upstream, connection.upgrade()) {
                connection.keep(epoch, target, one);
            }
        })
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

/// Where a request goes. All that name an authority must name the same one.
fn destination(door: &Door, parts: &Parts) -> Result<(Scheme, Authority), Denial> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Denial::malformed("Host appears twice"));
    }
    if host.is_none() && parts.version == Version::HTTP_11 {
        return Err(Denial::malformed("Host is missing"));
    }
    let (scheme, expected) = match door {
        Door::Tunnel { authority, scheme } => (*scheme, authority.clone()),
        Door::Plain => (Scheme::Http, absolute(&parts.uri)?),
    };
    let default_port = match scheme {
        Scheme::Http => 80,
        Scheme::Https => 443,
    };
    let named = [
        host.map(|value| value.to_str().unwrap_or("\0")),
        parts.uri.authority().map(http::uri::Authority::as_str),
    ];
    for text in named.into_iter().flatten() {
        // A tunnel to another port than the scheme's: clients leave it out or name it.
        let parsed = Authority::parse(text, Some(default_port)).map_err(Denial::malformed)?;
        if parsed != expected {
            let sentence =
                format!("Host mismatch: {parsed} was asked for on a connection to {expected}");
            return Err(Denial::new(Code::HostMismatch, sentence));
        }
    }
    let scheme_differs = parts
        .uri
        .scheme_str()
        .is_some_and(|named| named != scheme.as_str());
    if scheme_differs {
        return Err(Denial::malformed(
            "the scheme differs from the connection's",
        ));
    }
    Ok((scheme, expected))
}

fn absolute(uri: &Uri) -> Result<Authority, Denial> {
    let Some(authority) = uri.authority() else {
        return Err(Denial::malformed(
            "a proxy takes requests in absolute form, or CONNECT",
        ));
    };
    if uri.scheme_str() != Some("http") {
        return Err(Denial::malformed(
            "only http is taken in absolute form; use CONNECT for https",
        ));
    }
    Authority::parse(authority.as_str(), Some(80)).map_err(Denial::malformed)
}

/// The request as the upstream gets it. HTTP/2 needs the absolute form; [`transmit`] cuts it
/// down for HTTP/1.1.
fn outgoing(
    head: Head,
    body: RequestBody,
    target: &Target,
) -> Result<Request<RequestBody>, Denial> {
    let path = head.path.sent();
    let target_text = match &head.query {
        Some(query) => format!("{path}?{query}").parse::<PathAndQuery>(),
        None => path.parse::<PathAndQuery>(),
    };
    let path_and_query = target_text.map_err(|_| Denial::malformed("the path cannot be sent"))?;
    let uri = Uri::builder()
        .scheme(target.scheme.as_str())
        .authority(authority_text(target))
        .path_and_query(path_and_query)
        .build()
        .map_err(|_| Denial::malformed("the path cannot be sent"))?;
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = uri;
    *request.headers_mut() = head.headers;
    if head.websocket {
        websocket::ask(request.headers_mut());
    }
    Ok(request)
}

/// The authority in normal form; the scheme's own port is left out, as clients do.
fn authority_text(target: &Target) -> String {
    match (target.scheme, target.port) {
        (Scheme::Http, 80) | (Scheme::Https, 443) => target.host.to_string(),
        (_, port) => format!("{}:{port}", target.host),
    }
}

type Sent = Result<Response<Incoming>, hyper::client::conn::TrySendError<Request<RequestBody>>>;

async fn transmit(
    upstream: Upstream,
    mut request: Request<RequestBody>,
    target: &Target,
) -> (Sent, Upstream) {
    match upstream {
        Upstream::Http1(mut one) => {
            *request.version_mut() = Version::HTTP_11;
            if let Ok(host) = HeaderValue::from_str(&authority_text(target)) {
                request.headers_mut().insert(HOST, host);
            }
            let origin_form = request.uri().path_and_query().cloned();
            if let Some(origin_form) = origin_form {
                *request.uri_mut() = origin_form.into();
            }
            let sent = one.sender.try_send_request(request).await;
            (sent, Upstream::Http1(one))
        }
        Upstream::Http2(mut one) => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(HOST);
            let sent = one.sender.try_send_request(request).await;
            (sent, Upstream::Http2(one))
        }
    }
}

/// Waits for a response head. The time runs from the last byte of the request, so that a long
/// upload is not cut short.
async fn within<T>(
    limit: Duration,
    live: &LiveFlow,
    sending: impl Future<Output = T>,
) -> Result<T, Denial> {
    let sent = || live.flow.counters.bytes_in.load(Ordering::Relaxed);
    let mut sending = std::pin::pin!(sending);
    loop {
        let before = sent();
        match timeout(limit, &mut sending).await {
            Ok(done) => return Ok(done),
            Err(_elapsed) if sent() > before => {}
            Err(_elapsed) => {
                let sentence = format!("{} did not answer in time", live.flow.host);
                return Err(Denial::new(Code::UpstreamTimeout, sentence).with("step", "response"));
            }
        }
    }
}

fn take_denial(slot: &DenialSlot) -> Option<Denial> {
    slot.lock().take()
}

fn request_broke_off(error: BodyError) -> Denial {
    match error {
        BodyError::Denied(denial) => denial,
        BodyError::Peer(_) => Denial::malformed("the body broke off").by("proxy"),
    }
}

fn upstream_broke_off(host: &Host, error: &hyper::Error) -> Denial {
    if error.is_user() {
        // Our own body ended in an error: the client went away in the middle of it.
        return Denial::malformed("the body broke off").by("proxy");
    }
    let why = if error.is_parse() {
        "sent what is not HTTP"
    } else {
        "closed the connection"
    };
    Denial::new(Code::UpstreamUnreachable, format!("{host} {why}")).with("step", "response")
}
