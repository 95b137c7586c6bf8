//! The HTTP client of the addons, for example to refresh tokens. Its requests pass the chain and
//! the audit like any other.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use addons::contract::{
    self, Authority, BoxFuture, Buffered, Client, Container, Denial, Endpoint, Kind, LiveFlow,
    Lookup, Outbound, OutboundError, Path, Principal, ResolvePermit, Scheme, System,
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

use super::{
    DialError, Network, broke_off, handshake, not_answered, not_answered_in_time, open_raw,
};

/// Limit for a whole exchange, from the chain's judgement to the last byte of the response. It is
/// short, since a client's request may wait for the exchange.
const LIMIT: Duration = Duration::from_secs(20);
/// Limit for the whole exchange of a look-up at a git forge. It is below the chain's deadline
/// (`PHASE_DEADLINE`), since the hook that waits for the look-up must not exceed that deadline.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(8);
/// The longest response body in bytes; a longer one fails the request. Tokens and the responses of
/// APIs are far shorter.
const MAX_RESPONSE: usize = 1 << 20;

/// Returns the network of the configuration in force; `None` once the snapshots have been dropped,
/// at the end of the process.
type CurrentNetwork = Box<dyn Fn() -> Option<Arc<Network>> + Send + Sync>;

/// Sends requests of addons by HTTP/1.1 over TLS with verified certificates, or in clear text if
/// the chain permits it. Follows no redirects.
#[derive(Default)]
pub struct OutboundClient {
    /// Set after the first network is built, since parts of that network hold this client.
    current: OnceLock<CurrentNetwork>,
}

impl OutboundClient {
    /// Makes each later request use the network that `current` returns at that time. Until this is
    /// called, requests fail.
    pub fn follow(&self, current: CurrentNetwork) {
        // Called once; a second call would have no effect.
        let _ = self.current.set(current);
    }

    async fn ask(
        &self,
        principal: Principal,
        limit: Duration,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, OutboundError> {
        let network = self.current.get().and_then(|current| current());
        let network = network.ok_or(OutboundError::Starting)?;
        let endpoint = destination(request.uri())?;
        let chain = &network.chain;
        let path = Path::parse(request.uri().path());
        let path = principal.printed(path.normal()).into();
        let mut start = chain.to_upstream(Kind::Http, Client::default(), endpoint);
        start.principal = Some(principal);
        let mut live = LiveFlow::begin(chain, start);
        live.record().method = Some(request.method().as_str().to_owned().into());
        live.record().path = Some(path);
        let exchanged = timeout(limit, exchange(&mut live, &network, request)).await;
        let answered = exchanged.unwrap_or_else(|_elapsed| Err(not_answered_in_time(live.host())));
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

/// The endpoint of a URL. The chain decides whether clear text is permitted.
fn destination(uri: &Uri) -> Result<Endpoint, OutboundError> {
    let (scheme, port) = match uri.scheme_str() {
        Some("https") => (Scheme::Https, 443),
        Some("http") => (Scheme::Http, 80),
        _ => return Err(OutboundError::NoUrl),
    };
    let authority = uri.authority().ok_or(OutboundError::NoUrl)?;
    let authority = Authority::parse(authority.as_str(), Some(port));
    let Authority { host, port } = authority.map_err(Denial::malformed)?;
    Ok(Endpoint { scheme, host, port })
}

async fn exchange(
    live: &mut LiveFlow,
    network: &Network,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, Denial> {
    let (permit, request) = permit(live, request).await?;
    let (socket, _) = open_raw(live, network, &permit).await?;
    if live.scheme() == Scheme::Http {
        return converse(live, socket, request).await;
    }
    let (config, _) = network.tls.for_lease();
    let tls = handshake(network, live.host(), socket, config)
        .await
        .map_err(DialError::into_denial)?;
    converse(live, tls, request).await
}

async fn converse(
    live: &mut LiveFlow,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, Denial> {
    let chain = Arc::clone(&live.chain);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broke_off(live.host(), &error))?;
    let asking = async {
        let response = sender.send_request(origin_form(request)?).await;
        let response = response.map_err(|error| broke_off(live.host(), &error))?;
        let mut head = contract::Response::new(response.status(), response.headers().clone());
        chain.response(&mut live.flow, &mut head).await?;
        read_whole(live, response).await
    };
    // The connection is closed with the exchange, since no other request may use it.
    let mut connection = std::pin::pin!(connection);
    let mut asking = std::pin::pin!(asking);
    tokio::select! {
        answered = &mut asking => answered,
        _ = &mut connection => asking.await,
    }
}

/// Lets the chain judge a request: the `system` hooks judge a request of the proxy itself, the
/// `request` hooks a look-up on behalf of a container.
async fn permit(
    live: &mut LiveFlow,
    request: Request<Bytes>,
) -> Result<(ResolvePermit, Request<Bytes>), Denial> {
    let LiveFlow { flow, chain, .. } = live;
    if matches!(flow.principal, Some(Principal::System(_))) {
        return Ok((chain.system(flow).await?, request));
    }
    flow.put_slot(Lookup);
    let (mut parts, mut body) = request.into_parts();
    let path = Path::parse(parts.uri.path());
    let query = parts.uri.query().map(Into::into);
    let headers = std::mem::take(&mut parts.headers);
    let mut head = contract::Request::new(parts.method.clone(), path, query, headers);
    head.content_length = Some(body.len() as u64);
    let permit = chain.request(flow, &mut head).await?;
    if let Some(judges) = head.take_judges() {
        let buffered = Buffered::unlimited(body);
        body = chain.judge(flow, &mut head, judges, buffered).await?;
    }
    if !head.take_filters().is_empty() {
        // Filters need a streamed body, which a look-up does not have.
        return Err(Denial::internal().rule("filter of a look-up"));
    }
    parts.headers = head.headers;
    Ok((permit, Request::from_parts(parts, body)))
}

/// Rewrites the target of a request to origin form (RFC 9112, section 3.2.1), and adds `Host`.
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
    let body = Limited::new(body, MAX_RESPONSE).collect().await;
    let body = body.map_err(|_| {
        let why = "closed the connection within the body, or sent more than 1 MiB";
        not_answered(live.host(), why)
    })?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}
