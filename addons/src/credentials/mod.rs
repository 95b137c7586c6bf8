//! Keeps secrets from containers. Injects secrets into requests after every other addon has passed
//! the request. Scrubs echoes (copies of the secrets, also in common encodings) from responses
//! before any other addon sees the response.

mod clean;
mod endpoints;
mod forms;
pub mod github_app;
mod inject;
pub mod oauth;
mod placeholder;
mod scrub;
mod secret;
mod settings;
mod token;
mod token_sources;
mod wiped;

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderName, StatusCode};
use smallvec::SmallVec;

use crate::contract::{
    Addon, ContainerId, Flow, Host, HostMap, Order, Request, Response, SecretSource, Step, names,
};
use endpoints::Endpoints;
use inject::HostCredentials;
use scrub::{ScrubBody, ScrubTrailers, Scrubber};

pub use placeholder::{is_placeholder, placeholder};
use settings::SecretReader;
pub use settings::{CredentialEntry, CredentialSettings, KindSettings, SecretSetting};
pub use token::{Fetched, Token, TokenForm, TokenSource};
pub use token_sources::TokenSources;

/// The secrets of one entry, and the requests that get them. It has no `Debug` on purpose.
pub struct Credential {
    /// The name in the audit, in metrics, and in the `[REDACTED:name]` that replaces an echo.
    pub name: Arc<str>,
    /// The hosts and ports to which the secret may be sent.
    pub hosts: Vec<(Host, u16)>,
    /// How the secret is put into a request.
    pub kind: CredentialKind,
    /// Request fields to remove, in which a client could send its own key.
    pub remove_headers: Vec<HeaderName>,
    /// Query parameters to remove.
    pub remove_query: Vec<String>,
    /// Cookies to remove.
    pub remove_cookies: Vec<String>,
    /// The containers whose requests may get the secret; `None` for all.
    pub containers: Option<Vec<ContainerId>>,
    /// A request gets the secret only if its path names one of these repositories, and the
    /// container's registration lists the named repository. `None`: the path does not matter.
    pub repos: Option<Vec<String>>,
}

/// How a secret is put into a request.
pub enum CredentialKind {
    /// Each secret as the whole value of its field.
    SetHeaders(Vec<(HeaderName, Arc<dyn SecretSource>)>),
    /// As `Authorization: Basic`.
    Basic {
        /// Not a secret.
        username: String,
        /// The secret.
        password: Arc<dyn SecretSource>,
    },
    /// As `Authorization: Bearer`.
    Bearer(Arc<dyn SecretSource>),
    /// A token that expires and is replaced.
    Token {
        /// Whether the token is sent as a bearer token or as a basic password.
        form: TokenForm,
        /// Fetches and replaces the token.
        source: Arc<dyn TokenSource>,
        /// The OAuth login that the token belongs to. The addon itself answers requests to the
        /// login's endpoints, with placeholders. `None` for a token of a GitHub App.
        login: Option<oauth::Login>,
    },
}

/// Adds secrets to requests and removes their echoes from responses.
pub struct Credentials {
    hosts: HostMap<HostCredentials>,
    endpoints: Endpoints,
}

/// The scrubbers for a response, and the injected tokens. A 401 is reported to the source of each
/// token.
struct Guarded {
    scrubbers: SmallVec<[Arc<Scrubber>; 1]>,
    injected: Vec<(Arc<dyn TokenSource>, Arc<Token>)>,
    is_head: bool,
}

impl Credentials {
    /// Builds the addon. If several entries set the same field of a request, the value of the first
    /// one is sent.
    #[must_use]
    pub fn new(credentials: Vec<Credential>) -> Self {
        let mut hosts: HostMap<HostCredentials> = HostMap::default();
        let mut endpoints = Endpoints::default();
        for credential in credentials.into_iter().map(Arc::new) {
            endpoints.add(&credential);
            for (host, _) in &credential.hosts {
                hosts.entry(host.clone()).or_default().add(&credential);
            }
        }
        Self { hosts, endpoints }
    }
}

impl Addon for Credentials {
    fn name(&self) -> &'static str {
        names::CREDENTIALS
    }

    fn order(&self) -> Order {
        Order {
            // The addons github and git mark the requests that must stay without a credential.
            // GITHUB is not listed here: the `order` of github puts it before git and this addon.
            after: &[
                names::IDENTITY,
                names::RATE_LIMIT,
                names::POLICY,
                names::GIT,
            ],
            ..Order::default()
        }
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        if let Some(answer) = self.endpoints.answer(flow, request) {
            return Err(answer).into();
        }
        match self.hosts.get(flow.host()) {
            Some(host) => host.guard(flow, request),
            None => placeholder::refuse(flow, request).into(),
        }
    }

    fn response<'a>(&'a self, flow: &'a mut Flow, response: &'a mut Response) -> Step<'a> {
        if let Some(guarded) = flow.find_slot::<Guarded>() {
            guarded.guard_response(flow, response);
        }
        Step::PASS
    }
}

impl Guarded {
    fn guard_response(&self, flow: &Flow, response: &mut Response) {
        if response.status == StatusCode::UNAUTHORIZED
            && let Some(container) = flow.known_container()
        {
            for (source, token) in &self.injected {
                source.refused(container, token);
            }
        }
        for scrubber in &self.scrubbers {
            scrubber.scrub_headers(&mut response.headers);
        }
        if response.status == StatusCode::SWITCHING_PROTOCOLS {
            for scrubber in self.scrubbers.iter().map(Arc::clone) {
                response.filter_messages(move || ScrubBody::new(Arc::clone(&scrubber)));
            }
            return;
        }
        let bodiless = self.is_head || has_no_body(response.status);
        for scrubber in self.scrubbers.iter().map(Arc::clone) {
            if bodiless || self.is_too_short(&response.headers) {
                // Over HTTP/2, trailers may follow even an empty body.
                response.push_filter(ScrubTrailers(scrubber));
            } else {
                response.push_filter(ScrubBody::new(scrubber));
            }
        }
    }

    /// Whether `Content-Length` is below the length of every form of a secret. Such a body is not
    /// scrubbed, so it keeps its `Content-Length`. `false` without a `Content-Length`, and for an
    /// encoded body, which may be longer when decoded.
    fn is_too_short(&self, headers: &HeaderMap) -> bool {
        if headers.contains_key(CONTENT_ENCODING) {
            return false;
        }
        let length = headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok());
        let length = length.and_then(|text| text.parse::<usize>().ok());
        let shortest = self.scrubbers.iter().map(|scrubber| scrubber.shortest());
        length.is_some_and(|length| length < shortest.min().unwrap_or(usize::MAX))
    }
}

fn has_no_body(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

#[cfg(test)]
mod tests;
