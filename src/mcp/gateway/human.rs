//! People who call the gateway from this machine with a token.

use addons::contract::{Code, Denial, fold_address};
use http::header::{AUTHORIZATION, ORIGIN};
use http::{Method, StatusCode};

use super::super::human::is_token;
use super::super::message::{Message, write_response};
use super::answer::HttpResponse;
use super::media::{check_accept, check_body};
use super::refusal::{JSON, bad_request};
use super::{Gateway, not_allowed, unreadable};
use crate::http::OriginRequest;

/// The longest message of a person, in bytes, and its most JSON values.
const MAX_BODY: usize = 512 << 10;
const MAX_VALUES: usize = 10_000;

/// The token with which a request claims to come from a person; `None` for a request without one, and
/// if no tokens are configured.
pub fn claimed(request: &OriginRequest) -> Option<String> {
    request
        .snapshot
        .config
        .addons
        .mcp
        .tokens
        .human_jwt
        .as_ref()?;
    let fields = request.head.headers.get_all(AUTHORIZATION).iter();
    let mut tokens = fields.filter_map(|field| {
        let (scheme, credential) = field.to_str().ok()?.trim().split_once(' ')?;
        let credential = credential.trim();
        let is_claim = scheme.eq_ignore_ascii_case("bearer") && is_token(credential);
        is_claim.then(|| credential.to_owned())
    });
    tokens.next()
}

impl Gateway {
    /// Answers a person's request.
    pub(super) async fn post_human(
        &self,
        request: &mut OriginRequest,
        token: &str,
    ) -> Result<HttpResponse, Denial> {
        check_client(request)?;
        let settings = request.snapshot.config.addons.mcp.tokens.human_jwt.clone();
        let settings = settings.ok_or_else(|| refused("no tokens are accepted"))?;
        let verified = self.people.verify(&settings, token).await;
        let by = verified.map_err(|error| refused(&error.to_string()))?;
        if request.head.method != Method::POST {
            // A person has no session, and no stream of messages outside requests.
            return Err(not_allowed(&request.head.method, "/mcp"));
        }
        check_body(&request.head.headers)?;
        check_accept(&request.head.headers, JSON)?;
        let body = request.body(MAX_BODY, "MCP message of a person").await?;
        match Message::parse(&body, MAX_VALUES).map_err(unreadable)? {
            Message::Request { id, method, params } => {
                let outcome = self.people.request(by, method, params).await;
                let text = write_response(Some(&id), &outcome);
                Ok(HttpResponse::json(StatusCode::OK, text.into()))
            }
            Message::Notification { .. } => Ok(HttpResponse::empty(StatusCode::ACCEPTED)),
            Message::Response { id, .. } => {
                let sentence = "the server asks people nothing, so they send no responses";
                Err(bad_request(id.as_ref(), sentence))
            }
        }
    }
}

/// Refuses a token from a container, from another machine or from a page in a browser. Nothing but
/// the connection tells where a request comes from.
fn check_client(request: &OriginRequest) -> Result<(), Denial> {
    let session = &request.session;
    if session.container.is_some() || session.principal.is_some() {
        return Err(refused("containers are agents"));
    }
    let is_local = session
        .client
        .peer
        .is_some_and(|peer| fold_address(peer.ip()).is_loopback());
    if !is_local {
        return Err(refused(
            "the connection is not encrypted, so tokens are accepted from loopback only",
        ));
    }
    if let Some(source) = &session.client.source {
        // The connection may be older than the registration of its address.
        let registered = request.snapshot.containers.find(source);
        let unavailable = |_| Denial::new(Code::RegistryUnavailable, "Registry unavailable");
        if registered.map_err(unavailable)?.is_some() {
            return Err(refused("containers are agents"));
        }
    }
    if request.head.headers.contains_key(ORIGIN) {
        return Err(refused("a browser sent it"));
    }
    let fields = request.head.headers.get_all(AUTHORIZATION).iter();
    match fields.count() {
        1 => Ok(()),
        _ => Err(Denial::malformed("Authorization must appear once")),
    }
}

fn refused(why: &str) -> Denial {
    let sentence = format!("The token of a person is not accepted: {why}");
    Denial::new(Code::UnknownSource, sentence).rule("tokens.human_jwt")
}
