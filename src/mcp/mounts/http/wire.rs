//! HTTP requests to one server.

use std::sync::Arc;

use addons::contract::{Denial, Endpoint};
use addons::mcp::HttpSettings;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST,
    LOCATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};

use super::drain::drain;
use crate::http::{Answer, OwnClient};
use crate::mcp::fields::{LAST_EVENT_ID, METHOD, NAME, PROTOCOL_VERSION, SESSION_ID};
use crate::mcp::warnings::deviates;

const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Fields that `headers` of a server may not set: the transport sets them, or they are hop-by-hop.
const OWN_FIELDS: [HeaderName; 16] = [
    HOST,
    ACCEPT,
    ACCEPT_ENCODING,
    CONTENT_TYPE,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    CONNECTION,
    UPGRADE,
    TE,
    TRAILER,
    EXPECT,
    SESSION_ID,
    PROTOCOL_VERSION,
    METHOD,
    NAME,
    LAST_EVENT_ID,
];

/// The most redirects that are followed for one request.
const MAX_REDIRECTS: usize = 3;

/// The endpoint of a server, and the configured header fields of every request to it.
#[derive(Clone)]
pub struct Target {
    endpoint: Arc<Endpoint>,
    /// Path and query of the URL.
    pub path: PathAndQuery,
    fields: Arc<HeaderMap>,
}

impl Target {
    /// Reads the settings. An error names the field, never its value.
    pub fn of(settings: &HttpSettings) -> Result<Self, String> {
        let uri: Uri = settings
            .url
            .0
            .parse()
            .map_err(|error| format!("the URL is not valid: {error}"))?;
        let path = uri.path_and_query().cloned();
        let mut fields = HeaderMap::new();
        for (name, value) in &settings.headers {
            let field: HeaderName = name
                .parse()
                .map_err(|_| format!("{name:?} is not a valid header field name"))?;
            if OWN_FIELDS.contains(&field) {
                return Err(format!(
                    "the transport itself sets the field {field}: remove it from headers"
                ));
            }
            let mut value = HeaderValue::from_str(&value.0)
                .map_err(|_| format!("the value of {field} is not valid in a header field"))?;
            value.set_sensitive(true);
            fields.append(field, value);
        }
        Ok(Self {
            endpoint: Arc::new(settings.endpoint.clone()),
            path: path.unwrap_or_else(|| PathAndQuery::from_static("/")),
            fields: Arc::new(fields),
        })
    }

    /// Resolves a reference in a response of the server to a path on the same server. Fails if the
    /// reference is invalid or has another scheme, host or port.
    pub fn at(&self, reference: &str) -> Result<PathAndQuery, String> {
        let foreign = || {
            "the server named an endpoint with another scheme, host or port than its URL".to_owned()
        };
        let unreadable = |_| "the server named an endpoint that is not a URL".to_owned();
        // `//` and `\` can begin another authority: browsers treat `\` like `/`.
        if reference.starts_with("//") || reference.contains('\\') {
            return Err(foreign());
        }
        if let Some(path) = reference.strip_prefix('/') {
            return format!("/{path}").parse().map_err(unreadable);
        }
        let here = self.path.path();
        if let Some(query) = reference.strip_prefix('?') {
            return format!("{here}?{query}").parse().map_err(unreadable);
        }
        let uri: Option<Uri> = reference.parse().ok();
        let absolute = uri.filter(|uri| uri.scheme().is_some());
        let Some(uri) = absolute else {
            if reference.contains("://") {
                return Err(foreign());
            }
            let folder = here.rsplit_once('/').map_or("", |(folder, _)| folder);
            return format!("{folder}/{reference}").parse().map_err(unreadable);
        };
        let authority = uri.authority().map(|authority| authority.as_str());
        let scheme = self.endpoint.scheme.as_str();
        let names = [
            self.endpoint.authority(),
            format!("{}:{}", self.endpoint.host, self.endpoint.port),
        ];
        let is_same = uri.scheme_str() == Some(scheme)
            && authority
                .is_some_and(|text| names.iter().any(|name| name.eq_ignore_ascii_case(text)));
        if !is_same {
            return Err(foreign());
        }
        Ok(uri
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/")))
    }
}

/// Sends requests to one server on behalf of one lease, or of the proxy for a shared session.
#[derive(Clone)]
pub struct Wire {
    /// The server's name, for the log.
    pub server: Arc<str>,
    /// Sends the requests through the chain.
    pub client: OwnClient,
    /// The destination of the requests.
    pub target: Target,
}

impl Wire {
    /// Posts a message; accepts a response as JSON or as a stream.
    pub async fn post(
        &self,
        path: &PathAndQuery,
        fields: HeaderMap,
        message: String,
    ) -> Result<Answer, Denial> {
        self.send(self.posting(path, fields, message)).await
    }

    /// Posts the first message. If the server redirects it, posts it again, and sets `path` for the
    /// later messages: so no call is ever repeated because of a redirect.
    pub async fn post_first(
        &self,
        path: &mut PathAndQuery,
        fields: HeaderMap,
        message: String,
    ) -> Result<Answer, Denial> {
        let request = |path: &PathAndQuery| self.posting(path, fields.clone(), message.clone());
        self.send_first(path, request).await
    }

    /// Requests a stream of events.
    pub async fn get(&self, fields: HeaderMap) -> Result<Answer, Denial> {
        self.send(self.getting(&self.target.path, fields)).await
    }

    /// Requests a stream of events; follows redirects, as [`Wire::post_first`] does.
    pub async fn get_first(&self) -> Result<Answer, Denial> {
        let request = |path: &PathAndQuery| self.getting(path, HeaderMap::new());
        self.send_first(&mut self.target.path.clone(), request)
            .await
    }

    async fn send_first(
        &self,
        path: &mut PathAndQuery,
        request: impl Fn(&PathAndQuery) -> Request<Bytes>,
    ) -> Result<Answer, Denial> {
        let mut redirects = 0;
        loop {
            let answer = self.send(request(path)).await?;
            let next = self.redirected(path, &answer);
            let Some(next) = next.filter(|_| redirects < MAX_REDIRECTS) else {
                return Ok(answer);
            };
            redirects += 1;
            drain(answer.body);
            *path = next;
        }
    }

    /// The path to which a response redirects: with a status that keeps method and body, and to the
    /// scheme, host and port of the endpoint, so that no other server gets the configured fields.
    fn redirected(&self, path: &PathAndQuery, answer: &Answer) -> Option<PathAndQuery> {
        if !matches!(answer.status.as_u16(), 307 | 308) {
            return None;
        }
        let here = Target {
            path: path.clone(),
            ..self.target.clone()
        };
        let location = answer.headers.get(LOCATION)?.to_str().ok()?;
        let next = here.at(location).ok()?;
        deviates(
            &self.server,
            "it redirects to another path: write the final URL into mcp.yaml",
        );
        Some(next)
    }

    /// Requests the end of a session with DELETE.
    pub async fn delete(&self, fields: HeaderMap) -> Result<Answer, Denial> {
        let request = self.request(Method::DELETE, &self.target.path, fields, Bytes::new());
        self.send(request).await
    }

    fn posting(&self, path: &PathAndQuery, fields: HeaderMap, message: String) -> Request<Bytes> {
        let mut request = self.request(Method::POST, path, fields, message.into());
        request.headers_mut().insert(ACCEPT, BOTH);
        request.headers_mut().insert(CONTENT_TYPE, JSON);
        request
    }

    fn getting(&self, path: &PathAndQuery, fields: HeaderMap) -> Request<Bytes> {
        let mut request = self.request(Method::GET, path, fields, Bytes::new());
        request.headers_mut().insert(ACCEPT, STREAM);
        let no_cache = HeaderValue::from_static("no-cache");
        request.headers_mut().insert(CACHE_CONTROL, no_cache);
        request
    }

    fn request(
        &self,
        method: Method,
        path: &PathAndQuery,
        fields: HeaderMap,
        body: Bytes,
    ) -> Request<Bytes> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.clone().into();
        *request.headers_mut() = fields;
        let headers = request.headers_mut();
        let configured = &*self.target.fields;
        for name in configured.keys() {
            // The fields of the message take precedence.
            if !headers.contains_key(name) {
                for value in configured.get_all(name) {
                    headers.append(name, value.clone());
                }
            }
        }
        let agent = concat!("unified-proxy/", env!("CARGO_PKG_VERSION"));
        let agent = HeaderValue::from_static(agent);
        headers.entry(USER_AGENT).or_insert(agent);
        let plain = HeaderValue::from_static("identity");
        headers.insert(ACCEPT_ENCODING, plain);
        request
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Answer, Denial> {
        // The configured fields may contain credentials.
        let carries_secrets = !self.target.fields.is_empty();
        self.client
            .send(&self.target.endpoint, request, carries_secrets)
            .await
    }
}
