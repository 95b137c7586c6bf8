//! A request on its way through the chain to the upstream, and the start of its response.

use std::borrow::Cow;
use std::mem::take;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use addons::contract::{
    Code, Denial, Judges, Kind, LiveFlow, Request as Head, ResolvePermit, names,
};
use addons::git::as_git_shows;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http::{Method, Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::broke_off::upstream_broke_off;
use super::buffered_body::judge_request;
use super::destination::{Ingress, destination};
use super::drain::{Denied, drain};
use super::exchange::Exchange;
use super::headers::{Upgrade, read_head};
use super::held;
use super::outgoing::{deny_clear_text_secrets, outgoing, transmit, within};
use super::reply::{self, Reply};
use super::request_body::RequestBody;
use super::session::Session;
use super::upstream_response::{UpstreamResponse, deny};
use super::websocket;
use crate::upstream::{self, LeasePool, Upstream, Want};

/// Answers one request with the upstream's response or a denial.
///
/// There is one such future for each request under way, so it is kept small. The parts that never
/// wait run outside of it, and steps that few requests need are boxed.
pub fn handle(
    session: Arc<Session>,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> impl Future<Output = Response<Reply>> + Send + use<> {
    let close_after = session.container.is_none() || session.refusal.is_some();
    let may_close = request.version() < Version::HTTP_2;
    let mut closes = close_after && may_close;
    let (mut exchange, mut pending) = begin(session, ingress, request);
    async move {
        let answered = match &mut pending {
            Ok(pending) => pending.answer(&mut exchange).await,
            Err(denial) => Err(denial.clone()),
        };
        let response = match answered {
            Ok(answered) => answered.response(exchange),
            Err(denial) => {
                // `BodyTimeout` means that the client is too slow: an HTTP/1.1 connection is
                // closed, and the body is not drained.
                closes |= may_close && denial.code() == Code::BodyTimeout;
                deny(exchange, &denial)
            }
        };
        reply::closing_if(closes, response)
    }
}

/// Begins the flow and reads the head.
fn begin(
    session: Arc<Session>,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> (Box<Exchange>, Result<Box<PendingRequest>, Denial>) {
    let snapshot = session.service.snapshot();
    let (endpoint, malformed) = match destination(ingress, &request) {
        Ok(endpoint) => (endpoint, None),
        Err(denial) => (ingress.destination(), Some(denial)),
    };
    let start = session.start(&snapshot, Kind::Http, endpoint);
    let refusal = session.refusal.clone().or(malformed);
    let mut exchange = Exchange::begin(session, snapshot, start);
    exchange.live.record().method = Some(name_of(request.method()));
    let is_absolute_form = matches!(ingress, Ingress::Plain);
    if is_absolute_form {
        // A reload that forbids the previous request must not end this one, which may be held for a
        // person.
        *exchange.session.latest_permission.lock() = None;
    }
    let pending = PendingRequest::read(request, refusal, is_absolute_form, &mut exchange.live);
    (exchange, pending)
}

/// A request that has not been sent to the upstream yet.
pub struct PendingRequest {
    pub head: Head,
    uri: Uri,
    version: Version,
    /// The body, until it is passed on to be judged or sent. A denial before that drains it. `None`
    /// for a request of an [`super::OwnClient`].
    body: Option<Incoming>,
    /// The client sent `Expect: 100-continue`: reading the body would make hyper send `100
    /// Continue`.
    expects_continue: bool,
    on_upgrade: Option<OnUpgrade>,
    /// The request names its own destination (absolute form), which the chain has not judged yet.
    /// The destination of a tunnel was judged at the CONNECT.
    is_absolute_form: bool,
    /// The request carries the operator's secrets, which are sent in clear text only to private
    /// addresses.
    carries_secrets: bool,
}

impl PendingRequest {
    fn read(
        request: Request<Incoming>,
        refusal: Option<Denial>,
        is_absolute_form: bool,
        live: &mut LiveFlow,
    ) -> Result<Box<Self>, Denial> {
        let (mut parts, body) = request.into_parts();
        let on_upgrade = parts.extensions.remove::<OnUpgrade>();
        let expects_continue = parts.headers.contains_key(EXPECT);
        match read(&mut parts, refusal, on_upgrade.is_some(), live) {
            Ok(head) => Ok(Box::new(Self {
                head,
                uri: parts.uri,
                version: parts.version,
                body: Some(body),
                expects_continue,
                on_upgrade,
                is_absolute_form,
                carries_secrets: false,
            })),
            Err(denial) => {
                drain_beside(body, expects_continue, &denial);
                Err(denial.by(names::PROXY))
            }
        }
    }

    /// A request of an [`super::OwnClient`]. Its body is passed to [`PendingRequest::converse`].
    pub fn own(head: Head, uri: Uri, carries_secrets: bool) -> Self {
        Self {
            head,
            uri,
            // Allows a stream of a shared HTTP/2 connection.
            version: Version::HTTP_2,
            body: None,
            expects_continue: false,
            on_upgrade: None,
            is_absolute_form: false,
            carries_secrets,
        }
    }

    /// Takes the request through the chain, sends it, and takes the response through the chain.
    /// Nothing is resolved or dialled before the chain has permitted the request.
    async fn answer(&mut self, exchange: &mut Exchange) -> Result<Box<UpstreamResponse>, Denial> {
        let permitted = self.judge(exchange).await;
        let permit = permitted.map_err(|denial| self.denied(denial))?;
        let body = self.body_of(exchange).await?;
        self.converse(exchange, &permit, body).await
    }

    /// Sends the judged request and takes the response head through the chain. If an addon judges
    /// the response body, buffers it and lets the addon judge it.
    pub async fn converse(
        &mut self,
        exchange: &mut Exchange,
        permit: &ResolvePermit,
        body: RequestBody,
    ) -> Result<Box<UpstreamResponse>, Denial> {
        let opening = self.opening(&body)?;
        let (response, upstream) = self.send(exchange, permit, body).await?;
        let (live, idle) = (&mut exchange.live, &exchange.session.idle);
        let mut response = UpstreamResponse::read(response, upstream, opening, live.host())?;
        let judging = live.chain.response(&mut live.flow, &mut response.head);
        idle.held(judging).await?;
        if let Some(judges) = response.head.take_judges() {
            Box::pin(response.judge(exchange, judges)).await?;
        }
        Ok(response)
    }

    /// Lets the chain judge the head. If the request names its own destination, the chain first
    /// judges the destination, as for a CONNECT.
    pub async fn judge(&mut self, exchange: &mut Exchange) -> Result<ResolvePermit, Denial> {
        if self.is_absolute_form {
            Box::pin(held::judge_destination(exchange)).await?;
        }
        let (live, idle) = (&mut exchange.live, &exchange.session.idle);
        let waited = held::waited(live);
        let request = live.chain.request(&mut live.flow, &mut self.head);
        let permit = idle.held(request).await?;
        if held::waited(live) != waited {
            held::in_force(exchange)?;
        }
        let live = &mut exchange.live;
        exchange.session.is_bound(&live.flow)?;
        let path = self.head.path.normal();
        let path = match &exchange.session.principal {
            Some(principal) => principal.printed(path),
            None => path.into(),
        };
        if live.record().path.as_deref() != Some(&*path) {
            live.record().path = Some(path.into());
        }
        Ok(permit)
    }

    /// Drains the body of a denied request. Returns the denial. A 403 denial of git's `info/refs`
    /// gets an answer in plain text, since git shows plain text.
    fn denied(&mut self, denial: Denial) -> Denial {
        if let Some(body) = self.body.take() {
            drain_beside(body, self.expects_continue, &denial);
        }
        as_git_shows(denial, &self.head)
    }

    /// The body to send: buffered and judged if an addon judges it, otherwise streamed.
    async fn body_of(&mut self, exchange: &mut Exchange) -> Result<RequestBody, Denial> {
        let body = self.body.take().ok_or_else(Denial::internal)?;
        if let Some(judges) = self.head.take_judges() {
            return Box::pin(self.judged(exchange, body, judges)).await;
        }
        let filters = self.head.take_filters();
        let body = RequestBody::new(body, filters, exchange, self.expects_continue);
        Ok(body)
    }

    async fn judged(
        &mut self,
        exchange: &mut Exchange,
        mut body: Incoming,
        judges: Judges<Head>,
    ) -> Result<RequestBody, Denial> {
        match judge_request(exchange, &mut self.head, &mut body, judges).await {
            Ok(judged) => {
                let filters = self.head.take_filters();
                Ok(RequestBody::judged(judged, body, filters, exchange))
            }
            Err(denial) => {
                let denial = denial.by(names::PROXY);
                // A client that has sent a byte of the body no longer waits for `100 Continue`.
                let bytes_in = &exchange.live.flow.counters.bytes_in;
                let expects_continue =
                    self.expects_continue && bytes_in.load(Ordering::Relaxed) == 0;
                Err(refused(denial, body, expects_continue, self.version).await)
            }
        }
    }

    /// Sends the request. If the connection was closed before a byte of the request was sent,
    /// retries on another connection, up to twice.
    ///
    /// If a connection that has served other requests ends before a byte of the response, sends an
    /// idempotent request without a body once more, on a new connection, as nginx and browsers do:
    /// the upstream may have closed the idle connection just before the request arrived. A safe
    /// request is also repeated if its response has more header lines than the connection reads.
    async fn send(
        &mut self,
        exchange: &mut Exchange,
        permit: &ResolvePermit,
        mut body: RequestBody,
    ) -> Result<(Box<Response<Incoming>>, Upstream), Denial> {
        let denied = body.denial_slot();
        let uploading = body.under_way();
        let mut unsent: Option<Box<Request<upstream::RequestBody>>> = None;
        let mut retries = 0;
        let mut is_repeated = false;
        loop {
            let (mut upstream, is_reused) =
                acquire(exchange, permit, self.want(), is_repeated).await?;
            let flow = &exchange.live.flow;
            if self.carries_secrets {
                deny_clear_text_secrets(flow, &upstream)?;
            }
            // Pinned in place: a move into a variable would reserve the size of `sending` twice in
            // this future.
            let request = match unsent.take() {
                Some(unsent) => *unsent,
                None => self.outgoing(take(&mut body))?,
            };
            let is_repeatable =
                !is_repeated && uploading.is_none() && request.method().is_idempotent();
            let again = is_repeatable.then(|| Box::new(without_body(&request)));
            let sending = pin!(transmit(&mut upstream, request, flow));
            let mut error = match within(exchange, &mut upstream, sending).await? {
                Ok(response) => {
                    if uploading.is_some_and(|uploading| uploading.strong_count() > 0) {
                        // A client that is still sending may not read the response yet. hyper then
                        // stops polling the response body. Nothing else drives the upstream
                        // connection, so the upload would stall.
                        upstream.detach();
                    }
                    return Ok((response, upstream));
                }
                Err(error) => error,
            };
            if let Some(denied) = denied.as_ref().and_then(|slot| slot.lock().take()) {
                return Err(Box::pin(denied.when_due(self.version)).await);
            }
            // The end of the lease closes detached connections (connections with an upload, and
            // HTTP/2). Then the upstream is not at fault.
            exchange.session.is_live()?;
            // The error contains the request if the connection was closed before a byte of it was
            // sent. Then neither side is at fault, and a retry cannot send the request twice.
            match (error.take_message(), again) {
                (Some(message), _) if retries < 2 => {
                    retries += 1;
                    unsent = Some(Box::new(message));
                }
                (None, Some(again)) if is_reused && upstream.ended_without_response() => {
                    is_repeated = true;
                    unsent = Some(again);
                }
                (None, again)
                    if error.error().is_parse_too_large() && upstream.may_lack_lines() =>
                {
                    expect_long_heads(exchange)?;
                    let host = exchange.live.flow.host();
                    // The upstream has executed the request. Only a safe one is sent again.
                    let again = again.filter(|again| again.method().is_safe());
                    unsent = Some(again.ok_or_else(|| upstream::head_too_long(host))?);
                    is_repeated = true;
                }
                _ => {
                    let host = exchange.live.flow.host();
                    return Err(upstream_broke_off(host, error.error()));
                }
            }
        }
    }

    /// The opening handshake; `None` if the request opens no WebSocket.
    fn opening(&mut self, body: &RequestBody) -> Result<Option<Box<websocket::Opening>>, Denial> {
        let client = self.on_upgrade.take().filter(|_| self.head.websocket);
        let opening =
            client.map(|client| websocket::Opening::new(client, &self.head.headers, body));
        Ok(opening.transpose()?.map(Box::new))
    }

    /// The request for the upstream.
    fn outgoing(&mut self, body: RequestBody) -> Result<Request<upstream::RequestBody>, Denial> {
        if !body.keeps_length() {
            self.head.headers.remove(CONTENT_LENGTH);
        }
        let uri = take(&mut self.uri).into_parts();
        outgoing(&mut self.head, body.into(), uri.path_and_query)
    }

    fn want(&self) -> Want {
        match self.version {
            _ if self.head.websocket => Want::Websocket,
            Version::HTTP_2 => Want::Http2,
            _ => Want::Http1,
        }
    }
}

/// Returns a connection to send on: an upstream connection that this client connection keeps, a
/// connection of the lease's pool, or a new connection. A WebSocket always gets a new connection,
/// and so does a request with `is_repeated`. Also returns whether the connection may have served
/// other requests.
async fn acquire(
    exchange: &mut Exchange,
    permit: &ResolvePermit,
    want: Want,
    is_repeated: bool,
) -> Result<(Upstream, bool), Denial> {
    let (live, network) = (&mut exchange.live, &exchange.snapshot.network);
    if want != Want::Websocket && !is_repeated {
        let generation = network.generation;
        while let Some(mut kept) = exchange.session.take_kept(generation, &live.flow) {
            if upstream::ready(&mut kept).await {
                live.record().upstream_addr = Some(kept.address);
                return Ok((Upstream::Http1(kept), true));
            }
        }
    }
    // Boxed: requests on kept connections do not need its state.
    let (upstream, is_reused) = Box::pin(from_pool(exchange, permit, want, is_repeated)).await?;
    exchange.live.record().upstream_addr = Some(upstream.address());
    Ok((upstream, is_reused))
}

/// Returns an idle HTTP/1.1 connection or the HTTP/2 connection of the lease's pool, or opens one.
async fn from_pool(
    exchange: &mut Exchange,
    permit: &ResolvePermit,
    want: Want,
    is_repeated: bool,
) -> Result<(Upstream, bool), Denial> {
    let (live, network) = (&mut exchange.live, &exchange.snapshot.network);
    let owner = exchange.session.owner()?;
    let pool = LeasePool::of(owner, network);
    if !is_repeated && let Some(idle) = pool.reuse(owner, live, permit, want).await {
        return Ok((idle, true));
    }
    // Boxed: the state of a TLS handshake takes kilobytes.
    let opening = Box::pin(pool.open(owner, live, network, permit, want));
    let opened = exchange.session.idle.held(opening).await?;
    let may_be_shared = matches!(opened, Upstream::Http2(_));
    Ok((opened, may_be_shared))
}

/// Lets the lease's next connections to the request's endpoint read responses of more header lines.
fn expect_long_heads(exchange: &Exchange) -> Result<(), Denial> {
    let (owner, network) = (exchange.session.owner()?, &exchange.snapshot.network);
    let endpoint = exchange.live.endpoint().ok_or_else(Denial::internal)?;
    LeasePool::of(owner, network).expect_long_heads(endpoint);
    Ok(())
}

/// A copy of a request that has no body.
fn without_body(request: &Request<upstream::RequestBody>) -> Request<upstream::RequestBody> {
    let mut copy = Request::new(upstream::RequestBody::default());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// Reads a request's head, unless `refusal` denies the connection or the destination. Denies
/// upgrades other than to a WebSocket.
fn read(
    parts: &mut Parts,
    refusal: Option<Denial>,
    upgradable: bool,
    live: &mut LiveFlow,
) -> Result<Head, Denial> {
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    let (head, upgrade) = read_head(parts)?;
    live.record().path = Some(head.path.normal().into());
    if upgrade == Upgrade::Other || (head.websocket && !upgradable) {
        let sentence = "Protocol not allowed: only WebSocket upgrades pass";
        return Err(Denial::new(Code::ProtocolNotAllowed, sentence));
    }
    if head.websocket {
        live.opens_websocket();
    }
    Ok(head)
}

/// Drains the body in another task, so that a client that is still writing reads the response. Does
/// nothing if the client waits for `100 Continue`, since it then sends no body.
pub fn drain_beside(body: Incoming, expects_continue: bool, denial: &Denial) {
    if !expects_continue && !body.is_end_stream() {
        tokio::spawn(drain(body, denial));
    }
}

/// Returns the denial of a body once the response may be sent. Drains the rest of the body, except
/// after `BodyTimeout`. If the client waits for `100 Continue`, drains the body only if the denial
/// has an answer in the client's protocol.
async fn refused(
    denial: Denial,
    body: Incoming,
    expects_continue: bool,
    version: Version,
) -> Denial {
    if denial.code() == Code::BodyTimeout || (expects_continue && denial.answer().is_none()) {
        return denial;
    }
    Box::pin(Denied::new(denial, Some(body)).when_due(version)).await
}

/// The method's name; allocates only for methods other than the seven below.
pub fn name_of(method: &Method) -> Cow<'static, str> {
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
