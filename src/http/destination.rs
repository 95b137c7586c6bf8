//! The destination of a request, from its connection and its head.

use addons::contract::{Authority, Code, Denial, Endpoint, Host, Scheme};
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, Uri, Version};
use hyper::body::Incoming;

/// How requests on a connection name their destination.
#[derive(Clone, Debug)]
pub enum Ingress {
    /// In the request line, in absolute form (RFC 9112, section 3.2.2).
    Plain,
    /// In the CONNECT that opened the tunnel: all requests go to the tunnel's endpoint.
    Tunnel(Endpoint),
}

impl Ingress {
    /// The destination of all requests; an empty host and port 0 if each request names its
    /// destination.
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

/// Returns the destination of a request. Denies a request
///
/// - that [`host_field`] denies,
/// - whose tunnel, request target and `Host` name different authorities,
/// - whose request target names another scheme than the connection's, or
/// - that is neither in a tunnel nor in absolute form.
pub fn destination(ingress: &Ingress, request: &Request<Incoming>) -> Result<Endpoint, Denial> {
    let host = host_field(request.headers(), request.version())?;
    let expected = match ingress {
        Ingress::Tunnel(endpoint) => endpoint.clone(),
        Ingress::Plain => absolute(request.uri())?,
    };
    let default_port = default_port(expected.scheme);
    let named = [
        // NUL is in no valid authority, so a value that is not ASCII text is denied below.
        host.map(|value| value.to_str().unwrap_or("\0")),
        request.uri().authority().map(http::uri::Authority::as_str),
    ];
    for text in named.into_iter().flatten() {
        // The usual case: text that equals the host in normal form needs no parsing.
        if expected.port == default_port && expected.host.name() == Some(text) {
            continue;
        }
        // Without a port, the text names the scheme's default port; inside a tunnel to another
        // port, `Host` must contain that port.
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

/// Returns the `Host` field, if any. Denies a second `Host` field, and a missing one in HTTP/1.1
/// (RFC 9112, section 3.2).
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

fn default_port(scheme: Scheme) -> u16 {
    match scheme {
        Scheme::Http => 80,
        Scheme::Https => 443,
    }
}

fn absolute(uri: &Uri) -> Result<Endpoint, Denial> {
    let Some(authority) = uri.authority() else {
        return Err(Denial::malformed(
            "a proxy takes requests in absolute form, or CONNECT",
        ));
    };
    let scheme = match uri.scheme_str() {
        Some("http") => Scheme::Http,
        // The proxy does TLS with the upstream. Some clients, such as axios up to 1.15, send this
        // to a proxy instead of CONNECT.
        Some("https") => Scheme::Https,
        _ => {
            return Err(Denial::malformed(
                "only http and https are taken in absolute form",
            ));
        }
    };
    let authority = Authority::parse(authority.as_str(), Some(default_port(scheme)));
    let Authority { host, port } = authority.map_err(Denial::malformed)?;
    Ok(Endpoint { scheme, host, port })
}
