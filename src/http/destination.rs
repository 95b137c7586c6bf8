//! Where the requests of a connection go, as it and they say.

use addons::contract::{Authority, Code, Denial, Endpoint, Host, Scheme};
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, Uri, Version};
use hyper::body::Incoming;

/// How requests on a connection say where they go.
#[derive(Clone, Debug)]
pub enum Ingress {
    /// In the request line, in absolute form.
    Plain,
    /// All to the endpoint of the tunnel.
    Tunnel(Endpoint),
}

impl Ingress {
    /// Where all requests go, as far as the connection tells.
    pub fn destination(&self) -> Endpoint {
        match self {
            Self::Tunnel(endpoint) => endpoint.clone(),
            Self::Plain => Endpoint {
                scheme: Scheme::Http,
                host: Host::Name("".into()),
                port: 0,
            },
        }
    }
}

/// Where a request goes. All that name an authority must name the same one.
pub fn destination(ingress: &Ingress, request: &Request<Incoming>) -> Result<Endpoint, Denial> {
    let host = host_field(request.headers(), request.version())?;
    let expected = match ingress {
        Ingress::Tunnel(endpoint) => endpoint.clone(),
        Ingress::Plain => absolute(request.uri())?,
    };
    let default_port = match expected.scheme {
        Scheme::Http => 80,
        Scheme::Https => 443,
    };
    let named = [
        host.map(|value| value.to_str().unwrap_or("\0")),
        request.uri().authority().map(http::uri::Authority::as_str),
    ];
    for text in named.into_iter().flatten() {
        // As nearly all of them are: what is in normal form already needs no reading.
        if expected.port == default_port && expected.host.name() == Some(text) {
            continue;
        }
        // A tunnel to another port than the scheme's: clients leave it out or name it.
        let parsed = Authority::parse(text, Some(default_port)).map_err(Denial::malformed)?;
        if (&parsed.host, parsed.port) != (&expected.host, expected.port) {
            let expected = Authority {
                host: expected.host,
                port: expected.port,
            };
            let sentence =
                format!("Host mismatch: {parsed} was asked for on a connection to {expected}");
            return Err(Denial::new(Code::HostMismatch, sentence));
        }
    }
    let scheme_differs = request
        .uri()
        .scheme_str()
        .is_some_and(|named| named != expected.scheme.as_str());
    if scheme_differs {
        return Err(Denial::malformed(
            "the scheme differs from the connection's",
        ));
    }
    Ok(expected)
}

/// The Host field: one, which HTTP/1.1 requires (RFC 9112, section 3.2).
pub fn host_field(headers: &HeaderMap, version: Version) -> Result<Option<&HeaderValue>, Denial> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Denial::malformed("Host appears twice"));
    }
    if host.is_none() && version == Version::HTTP_11 {
        return Err(Denial::malformed("Host is missing"));
    }
    Ok(host)
}

fn absolute(uri: &Uri) -> Result<Endpoint, Denial> {
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
    let authority = Authority::parse(authority.as_str(), Some(80)).map_err(Denial::malformed)?;
    Ok(Endpoint {
        scheme: Scheme::Http,
        host: authority.host,
        port: authority.port,
    })
}
