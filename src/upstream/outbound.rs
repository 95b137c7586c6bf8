//! The engine's own HTTP client: the same chain, guard and audit as everybody's.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use addons::contract::{
    self, Authority, BoxFuture, Buffered, Chain, Client, Code, Container, Denial, Flow, Kind,
    Lookup, Outbound, OutboundError, Path, Principal, ResolvePermit, Scheme, Stage, System,
};
use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::{handshake, open_raw};
use crate::live::LiveFlow;
use crate::snapshot::SnapshotStore;

/// From the look-up to the answer's last byte: what waits for a token is a request that waits.
const LIMIT: Duration = Duration::from_secs(20);
/// The same for a look-up, for which a phase of the chain waits.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(8);
/// Tokens and answers of APIs; what is longer is none.
const MAX_ANSWER: usize = 1 << 20;

/// Sends requests of the appliance's own: over TLS with verified certificates unless it stays in
/// house, HTTP/1.1, no redirects followed.
#[derive(Default)]
pub struct OutboundClient {
    /// Known once there are any: what a snapshot is built from holds this client.
    snapshots: OnceLock<Weak<SnapshotStore>>,
}

impl OutboundClient {
    /// Uses the configuration that is in force there from now on.
    pub fn follow(&self, snapshots: &Arc<SnapshotStore>) {
        // A second call would name the same ones.
        let _ = self.snapshots.set(Arc::downgrade(snapshots));
    }

    async fn ask(
        &self,
        principal: Principal,
        limit: Duration,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, OutboundError> {
        let snapshots = self.snapshots.get().and_then(Weak::upgrade);
        let snapshot = snapshots.ok_or(OutboundError::Starting)?.current();
        let (scheme, authority) = destination(request.uri())?;
        let (host, port) = (authority.host, authority.port);
        let mut flow = snapshot.flow(Kind::Http, Client::default(), scheme, host, port);
        flow.principal = Some(principal);
        flow.record.method = Some(request.method().as_str().to_owned().into());
        flow.record.path = Some(Path::parse(request.uri().path()).normal().into());
        let mut live = LiveFlow::new(flow, snapshot);
        let answered = match timeout(limit, exchange(&mut live, request)).await {
            Ok(answered) => answered,
            Err(_elapsed) => Err(Denial::new(
                Code::UpstreamTimeout,
                format!("{} did not answer in time", live.flow.host),
            )
            .at(Stage::Response)),
        };
        match &answered {
            Ok(response) => {
                live.answered(response.status().as_u16());
                live.complete();
            }
            Err(denial) => live.denied(denial),
        }
        Ok(answered?)
    }
}

impl Outbound for OutboundClient {
    fn send<'a>(
        &'a self,
        principal: &'a Arc<System>,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, OutboundError>> {
        let principal = Principal::System(Arc::clone(principal));
        Box::pin(self.ask(principal, LIMIT, request))
    }

    fn look_up<'a>(
        &'a self,
        container: &'a Arc<Container>,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, OutboundError>> {
        let principal = Principal::from(Arc::clone(container));
        Box::pin(self.ask(principal, LOOK_UP_LIMIT, request))
    }
}

/// Where a request goes. Whether it may go there in clear is for the chain to say.
fn destination(uri: &Uri) -> Result<(Scheme, Authority), OutboundError> {
    let (scheme, port) = match uri.scheme_str() {
        Some("https") => (Scheme::Https, 443),
        Some("http") => (Scheme::Http, 80),
        _ => return Err(OutboundError::NoUrl),
    };
    let authority = uri.authority().ok_or(OutboundError::NoUrl)?;
    Authority::parse(authority.as_str(), Some(port))
        .map(|authority| (scheme, authority))
        .map_err(|error| OutboundError::Denied(Denial::malformed(error)))
}

async fn exchange(live: &mut LiveFlow, request: Request<Bytes>) -> Result<Response<Bytes>, Denial> {
    let snapshot = Arc::clone(&live.snapshot);
    let (cleared, request) = clear(&snapshot.chain, &mut live.flow, request).await?;
    let (socket, _) = open_raw(live, &cleared).await?;
    if live.flow.scheme == Scheme::Http {
        return converse(live, socket, request).await;
    }
    let (config, _) = snapshot.upstream_tls.for_lease();
    let tls = handshake(&snapshot, &live.flow.host, socket, config)
        .await
        .map_err(super::Dialled::into_denial)?;
    converse(live, tls, request).await
}

async fn converse(
    live: &mut LiveFlow,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, Denial> {
    let chain = Arc::clone(&live.snapshot.chain);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broke_off(live, &error))?;
    let asking = async {
        let response = sender.send_request(origin_form(request)?).await;
        let response = response.map_err(|error| broke_off(live, &error))?;
        let mut head = contract::Response::new(response.status(), response.headers().clone());
        chain.response(&mut live.flow, &mut head).await?;
        read_whole(live, response).await
    };
    // The connection ends with the exchange: nobody else's request may ever use it.
    let mut connection = std::pin::pin!(connection);
    let mut asking = std::pin::pin!(asking);
    tokio::select! {
        answered = &mut asking => answered,
        _ = &mut connection => asking.await,
    }
}

/// Has the chain judge a request, as what its principal makes it.
async fn clear(
    chain: &Chain,
    flow: &mut Flow,
    request: Request<Bytes>,
) -> Result<(ResolvePermit, Request<Bytes>), Denial> {
    if matches!(flow.principal, Some(Principal::System(_))) {
        return Ok((chain.system(flow).await?, request));
    }
    flow.slots.put(Lookup);
    let (mut parts, mut body) = request.into_parts();
    let path = Path::parse(parts.uri.path());
    let query = parts.uri.query().map(Into::into);
    let headers = std::mem::take(&mut parts.headers);
    let mut head = contract::Request::new(parts.method.clone(), path, query, headers);
    head.content_length = Some(body.len() as u64);
    let cleared = chain.request(flow, &mut head).await?;
    if let Some(judges) = head.take_judges() {
        let own = Buffered::own(body);
        body = chain.judge(flow, &mut head, judges, own).await?;
    }
    if !head.take_filters().is_empty() {
        // They would have to see the body, and nothing that is looked up has one to filter.
        return Err(Denial::internal().rule("filter of a look-up"));
    }
    parts.headers = head.headers;
    Ok((cleared, Request::from_parts(parts, body)))
}

/// As HTTP/1.1 sends it to an origin.
fn origin_form(request: Request<Bytes>) -> Result<Request<Full<Bytes>>, Denial> {
    let unsendable = || Denial::malformed("the URL cannot be sent");
    let mut request = request.map(Full::new);
    let uri = request.uri();
    let authority = uri.authority().ok_or_else(unsendable)?;
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| unsendable())?;
    let target = uri.path_and_query().cloned().ok_or_else(unsendable)?;
    *request.uri_mut() = target.into();
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().insert(HOST, host);
    Ok(request)
}

async fn read_whole(
    live: &LiveFlow,
    response: Response<Incoming>,
) -> Result<Response<Bytes>, Denial> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|_| {
        let sentence = format!("{} broke off, or sent too much", live.flow.host);
        Denial::new(Code::UpstreamUnreachable, sentence).at(Stage::Response)
    })?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

fn broke_off(live: &LiveFlow, error: &hyper::Error) -> Denial {
    let why = if error.is_parse() {
        "sent what is not HTTP"
    } else {
        "closed the connection"
    };
    Denial::new(
        Code::UpstreamUnreachable,
        format!("{} {why}", live.flow.host),
    )
    .at(Stage::Response)
}
