//! Requests of the appliance itself or on behalf of a container. They pass the chain, use the pool
//! and stream their response bodies.

use std::sync::Arc;

use addons::contract::{
    AuthMode, Client, Code, Container, ContainerId, Delegation, Denial, Endpoint, Kind, LeaseId,
    Path, Principal, Registration, Request as Head, ResolvePermit, Source, Standing, System, names,
};
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use time::OffsetDateTime;

use super::broke_off::BodyError;
use super::buffered_body::judge_whole;
use super::exchange::Exchange;
use super::idle::Timeouts;
use super::inspection::Reservation;
use super::pending_request::{PendingRequest, name_of};
use super::request_body::RequestBody;
use super::response_body::ResponseBody;
use super::session::{Service, Session};
use super::upstream_response::UpstreamResponse;
use crate::config::Limits;
use crate::upstream::{LeasePool, SocketPermit};

/// Sends requests of one part of the appliance.
///
/// Each request is a separate flow; the client follows no redirects. `upstream.response_timeout`
/// limits the wait for a response head. A body has no timeout here, since only its reader knows how
/// long the body may be silent. A flow ends when the response body has been read to the end, or
/// when the future of [`OwnClient::send`] or the body is dropped. Once the lease has ended or the
/// shutdown has aborted requests under way, [`OwnClient::send`] and [`AnswerBody::chunk`] fail.
#[derive(Clone)]
pub struct OwnClient {
    service: Arc<Service>,
    principal: Principal,
    /// The lease that owns the client's connections and memory.
    owner: Arc<Container>,
}

impl OwnClient {
    /// A client that works for no container; `None` only if `unregistered_container` fails. The
    /// client's connections are closed when its last clone and its last body have been dropped.
    fn system(service: Arc<Service>, system: Arc<System>) -> Option<Self> {
        Some(Self {
            service,
            owner: Arc::new(unregistered_container()?),
            principal: Principal::System(system),
        })
    }

    /// The client of a part of the appliance. If it works for a container, its requests pass the
    /// chain as delegated requests of that container. `None` only if `container` is `None` and
    /// `unregistered_container` fails.
    pub fn of(
        service: &Arc<Service>,
        system: System,
        container: Option<&Arc<Container>>,
    ) -> Option<Self> {
        let service = Arc::clone(service);
        let Some(container) = container else {
            return Self::system(service, Arc::new(system));
        };
        let delegation = Delegation::new(system, Arc::clone(container));
        Some(Self {
            service,
            owner: Arc::clone(container),
            principal: Principal::Delegated(Arc::new(delegation)),
        })
    }

    /// `limits` of the configuration in force.
    pub fn limits(&self) -> Limits {
        self.service.snapshot().config.proxy.limits.clone()
    }

    /// `upstream.idle_timeout` of the configuration in force.
    pub fn idle_timeout(&self) -> std::time::Duration {
        self.service.snapshot().config.proxy.upstream.idle_timeout
    }

    /// Makes a reservation of memory for a message that the caller buffers.
    pub fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        let limit = self.limits().inspect_memory;
        self.service.inspection.begin(&self.owner, limit)
    }

    /// Counts a denial for lack of memory.
    pub fn count(&self, denial: &Denial) {
        self.service.inspection.count(denial);
    }

    /// Takes a permit for a socket that the caller opens itself, to a server on this machine.
    /// Denies if the limit on upstream sockets is reached.
    pub fn take_socket(&self) -> Result<SocketPermit, Denial> {
        let network = Arc::clone(&self.service.snapshot().network);
        network.sockets.take(&self.principal).ok_or_else(|| {
            Denial::new(
                Code::TooManyConnections,
                "Too many connections to upstreams",
            )
            .rule("open files")
            .by(names::PROXY)
        })
    }

    /// Whether the pool has an open HTTP/1.1 connection to the endpoint, idle after an earlier
    /// request.
    pub fn has_idle(&self, endpoint: &Endpoint) -> bool {
        let network = Arc::clone(&self.service.snapshot().network);
        LeasePool::of(&self.owner, &network).has_idle(endpoint)
    }

    /// Returns when the lease ends, or when the shutdown aborts requests under way.
    pub async fn ended(&self) {
        tokio::select! {
            () = self.owner.ended().cancelled() => {}
            () = self.service.killed.cancelled() => {}
        }
    }

    /// A client for requests that may follow the end of the lease. Before the end, it is a clone of
    /// this client. Afterwards, it is a client that works for no container and has the same list of
    /// hosts.
    pub fn beyond_lease(&self) -> Option<Self> {
        match &self.principal {
            Principal::Delegated(delegation) if self.owner.has_ended() => {
                let system = Arc::new(delegation.system.clone());
                Self::system(Arc::clone(&self.service), system)
            }
            _ => Some(self.clone()),
        }
    }

    /// Sends a request whose URI is a path with its query. Returns the response head with a body
    /// that streams. `carries_secrets` marks a request with secrets, which must go over TLS or to a
    /// private address.
    pub async fn send(
        &self,
        endpoint: &Endpoint,
        request: Request<Bytes>,
        carries_secrets: bool,
    ) -> Result<Answer, Denial> {
        let mut exchange = self.begin(endpoint, &request);
        let answered = {
            let converse = Box::pin(self.converse(&mut exchange, request, carries_secrets));
            tokio::select! {
                answered = converse => answered,
                () = self.ended() => Err(lease_ended()),
            }
        };
        // Some denials name the path.
        let printed = |text: &str| self.principal.printed(text).into_owned();
        let answered = answered.map_err(|denial| denial.reworded(printed));
        let response = answered.inspect_err(|denial| exchange.live.denied(denial))?;
        let (head, body) = response.into_parts(exchange)?;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: AnswerBody {
                body,
                client: self.clone(),
            },
        })
    }

    fn begin(&self, endpoint: &Endpoint, request: &Request<Bytes>) -> Box<Exchange> {
        let snapshot = self.service.snapshot();
        // Each exchange has its own session. Dropping the session returns the upstream connection
        // to the pool.
        let session = Session::new(
            Arc::clone(&self.service),
            Client::default(),
            Some(Arc::clone(&self.owner)),
            Some(self.principal.clone()),
            None,
            Timeouts::from(&snapshot.config.proxy),
            Box::new(()),
        );
        let start = session.start(&snapshot, Kind::Http, endpoint.clone());
        let mut exchange = Exchange::begin(Arc::new(session), snapshot, start);
        let record = exchange.live.record();
        record.method = Some(name_of(request.method()));
        let path = Path::parse(request.uri().path());
        record.path = Some(self.principal.printed(path.normal()).into());
        exchange
    }

    async fn converse(
        &self,
        exchange: &mut Exchange,
        request: Request<Bytes>,
        carries_secrets: bool,
    ) -> Result<Box<UpstreamResponse>, Denial> {
        let (parts, body) = request.into_parts();
        let query = parts.uri.query().map(Into::into);
        let path = Path::parse(parts.uri.path());
        let mut head = Head::new(parts.method, path, query, parts.headers);
        head.content_length = Some(body.len() as u64);
        if !body.is_empty() {
            head.headers.insert(CONTENT_LENGTH, body.len().into());
        }
        let mut pending = PendingRequest::own(head, parts.uri, carries_secrets);
        let permit = self.judge(exchange, &mut pending).await?;
        let body = match pending.head.take_judges() {
            Some(judges) => Box::pin(judge_whole(exchange, &mut pending.head, &body, judges))
                .await
                .map_err(|denial| denial.by(names::PROXY))?,
            None => body,
        };
        let filters = pending.head.take_filters();
        let body = RequestBody::whole(body, filters, exchange);
        pending.converse(exchange, &permit, body).await
    }

    async fn judge(
        &self,
        exchange: &mut Exchange,
        pending: &mut PendingRequest,
    ) -> Result<ResolvePermit, Denial> {
        if !matches!(self.principal, Principal::System(_)) {
            return pending.judge(exchange).await;
        }
        let live = &mut exchange.live;
        live.chain.system(&mut live.flow).await
    }
}

/// A response to a request of an [`OwnClient`].
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: AnswerBody,
}

/// The body of a response, decoded and filtered.
pub struct AnswerBody {
    body: Box<ResponseBody>,
    client: OwnClient,
}

impl AnswerBody {
    /// Returns the next bytes; `None` at the end. Fails if the body breaks off or is denied, and
    /// once [`OwnClient::ended`] returns. Cancel safe.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let frame = tokio::select! {
                frame = self.body.frame() => frame.transpose()?,
                () = self.client.ended() => return Err(BodyError::Denied(lease_ended())),
            };
            match frame.map(http_body::Frame::into_data) {
                None => return Ok(None),
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(Ok(chunk)) => return Ok(Some(chunk)),
                Some(Err(_trailers)) => {}
            }
        }
    }
}

/// Makes a container that is not registered, so that no flow belongs to it. It owns the connections
/// and memory of a client that works for no container. Never `None`, since the fixed id is valid.
pub fn unregistered_container() -> Option<Container> {
    let id = ContainerId::parse("nobody")?;
    Some(Container::new(Registration {
        source: Source::Listener(id.clone()),
        id,
        lease: LeaseId::generate(),
        repos: Vec::new(),
        auth_mode: AuthMode::User,
        created_at: OffsetDateTime::UNIX_EPOCH,
        expires_at: OffsetDateTime::UNIX_EPOCH,
        allowed_domains: None,
        standing: Standing::default(),
    }))
}

fn lease_ended() -> Denial {
    Denial::new(Code::UnknownSource, "The lease has ended").by(names::PROXY)
}
