//! Callers without a container, which bring a token.

use std::sync::Arc;

use addons::contract::{AuthMode, Container, ContainerId, Containers, Source, TOKEN_AGENT};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use time::OffsetDateTime;
use time::macros::datetime;
use zeroize::Zeroizing;

use super::Gateway;
use crate::http::Session;
use crate::registry::{NewRegistration, Registry};

/// The lease of the built-in container never expires. This is the last second of RFC 3339.
const NEVER: OffsetDateTime = datetime!(9999-12-31 23:59:59 UTC);

impl Gateway {
    /// The session of a request: that of the built-in container `token-agent`, if the connection
    /// belongs to no container and the request brings the token. Otherwise the connection's.
    pub(super) async fn identify(
        &self,
        session: Arc<Session>,
        headers: &HeaderMap,
    ) -> Arc<Session> {
        if session.container.is_some() || !brings_token(&session, headers) {
            return session;
        }
        match token_agent(&self.registry).await {
            Some(container) => session.for_container(container),
            None => session,
        }
    }
}

fn brings_token(session: &Session, headers: &HeaderMap) -> bool {
    let snapshot = session.service.snapshot();
    let token = &snapshot.config.addons.mcp.tokens.agent;
    let Some(token) = token.as_ref().and_then(|token| token.read()) else {
        return false;
    };
    let presented = presented(headers);
    presented.is_some_and(|presented| {
        verify_slices_are_equal(presented.as_bytes(), token.as_bytes()).is_ok()
    })
}

/// The password of Basic authentication, or a bearer token. `None` if the field is repeated.
fn presented(headers: &HeaderMap) -> Option<Zeroizing<String>> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let (field, None) = (fields.next()?, fields.next()) else {
        return None;
    };
    let (scheme, value) = field.to_str().ok()?.split_once(' ')?;
    let value = value.trim_matches(' ');
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.to_owned().into());
    }
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    let decoded = Zeroizing::new(STANDARD.decode(value).ok().filter(|_| is_basic)?);
    let text = std::str::from_utf8(&decoded).ok()?;
    let (_user, password) = text.split_once(':')?;
    Some(password.to_owned().into())
}

/// The built-in container, whose lease begins with its first request. `None` while the registry cannot
/// be read or written.
async fn token_agent(registry: &Arc<Registry>) -> Option<Arc<Container>> {
    let now = OffsetDateTime::now_utc();
    let found = registry.find(&Source::Token).ok()?;
    if let Some(found) = found.filter(|found| found.is_live(now)) {
        return Some(found);
    }
    let new = NewRegistration {
        id: ContainerId::parse(TOKEN_AGENT)?,
        source: Source::Token,
        repos: Vec::new(),
        auth_mode: AuthMode::Bot,
        allowed_domains: None,
        expires_at: NEVER,
    };
    let registered = registry.register(new).await.ok()?;
    Some(registered.container)
}

/// Ends the lease of the built-in container: the token was changed or removed.
pub async fn end_token_agent(registry: &Arc<Registry>) {
    if let Some(id) = ContainerId::parse(TOKEN_AGENT)
        && registry.end_lease(id).await.is_err()
    {
        tracing::error!("the lease of token-agent could not be ended");
    }
}
