//! Secrets that sandboxes use and never see: added last, scrubbed first.

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
    Addon, ContainerId, Flow, Host, HostMap, Order, Request, Response, SecretSource, Step, Verdict,
    names,
};
use endpoints::Endpoints;
use inject::HostCredentials;
use scrub::{ScrubBody, ScrubTrailers, Scrubber};

pub use placeholder::{is_placeholder, placeholder};
use settings::SecretReader;
pub use settings::{CredentialEntry, CredentialSettings, KindSettings, SecretSetting};
pub use token::{Fetched, Token, TokenForm, TokenSource};
pub use token_sources::TokenSources;

/// One secret, and where it belongs. It has no `Debug` on purpose.
pub struct Credential {
    /// What stands in the place of an echo, in the audit and in metrics.
    pub name: Arc<str>,
    /// The hosts and ports it is for.
    pub hosts: Vec<(Host, u16)>,
    /// How it is put into a request.
    pub kind: CredentialKind,
    /// Fields that a client could bring a key of its own in.
    pub remove_headers: Vec<HeaderName>,
    /// The same for query parameters.
    pub remove_query: Vec<String>,
    /// The same for cookies.
    pub remove_cookies: Vec<String>,
    /// The containers it is for; `None` for all.
    pub containers: Option<Vec<ContainerId>>,
    /// The repositories it is for: requests whose path names one of them, and that the container
    /// has registered. `None` for all requests.
    pub repos: Option<Vec<String>>,
}

/// How a secret is put into a request.
pub enum CredentialKind {
    /// As the whole value of fields.
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
    /// A token that runs out and is got again.
    Token {
        /// How it is put.
        form: TokenForm,
        /// Who gets it.
        source: Arc<dyn TokenSource>,
        /// The login behind it, whose token endpoint is answered in the upstream's place.
        login: Option<oauth::Login>,
    },
}

/// Adds secrets to requests and removes their echoes from responses.
pub struct Credentials {
    hosts: HostMap<HostCredentials>,
    endpoints: Endpoints,
}

/// What the response to a request must be scrubbed with.
struct Guarded {
    scrubbers: SmallVec<[Arc<Scrubber>; 1]>,
    lent: Vec<(Arc<dyn TokenSource>, Arc<Token>)>,
    is_head: bool,
}

impl Credentials {
    /// Of several entries that set the same field, the first that is for a request counts.
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
            // git says which requests must stay without a credential.
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
        match flow.find_slot::<Guarded>() {
            Some(guarded) => guarded.guard_response(flow, response).into(),
            None => Step::PASS,
        }
    }
}

impl Guarded {
    fn guard_response(&self, flow: &Flow, response: &mut Response) -> Verdict {
        if response.status == StatusCode::UNAUTHORIZED
            && let Some(container) = flow.known_container()
        {
            for (source, token) in &self.lent {
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
            return Ok(());
        }
        let bodiless = self.is_head || has_no_body(response.status);
        for scrubber in self.scrubbers.iter().map(Arc::clone) {
            if bodiless || self.is_too_short(&response.headers) {
                // Over HTTP/2 trailers may follow all the same.
                response.push_filter(ScrubTrailers(scrubber));
            } else {
                response.push_filter(ScrubBody::new(scrubber));
            }
        }
        Ok(())
    }

    /// Whether no secret fits into the body, so that it may keep its length.
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
