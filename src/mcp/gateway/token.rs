//! Callers without a container, which bring a token.

use std::sync::Arc;

use addons::contract::{AuthMode, Container, ContainerId, Containers, Denial, Source, TOKEN_AGENT};
use addons::json::sha256_hex;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::sync::Mutex;
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
        if session.container.is_some() {
            return session;
        }
        let Some(token) = brought_token(&session, headers) else {
            return session;
        };
        match self.token_lease.of(&self.registry, &token).await {
            Some(container) => session.for_container(container),
            None => session,
        }
    }
}

/// Waits for work for a caller with a token, until its lease ends: its connection belongs to no
/// container, and so does not end with the lease.
pub(super) async fn while_leased<T>(
    session: &Session,
    work: impl Future<Output = Result<T, Denial>>,
) -> Result<T, Denial> {
    let by_token = |container: &&Arc<Container>| container.source == Source::Token;
    let Some(container) = session.container.as_ref().filter(by_token) else {
        return work.await;
    };
    tokio::select! {
        biased;
        () = container.ended().cancelled() => Err(session.unknown_source()),
        done = work => done,
    }
}

/// The token that a request brings, if it is the right one.
fn brought_token(session: &Session, headers: &HeaderMap) -> Option<Zeroizing<String>> {
    let snapshot = session.service.snapshot();
    let token = snapshot.config.addons.mcp.tokens.agent.as_ref()?.read()?;
    let presented = presented(headers)?;
    let is_equal = verify_slices_are_equal(presented.as_bytes(), token.as_bytes());
    is_equal.ok().map(|()| presented)
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

/// The lease of the built-in container.
#[derive(Default)]
pub struct TokenLease {
    /// SHA-256 of the token of its holders.
    digest: Mutex<Option<String>>,
}

impl TokenLease {
    /// The built-in container. Its lease begins with the first request with a token, and another
    /// begins after a restart, since the token may have changed meanwhile. `None` while the registry
    /// cannot be read or written.
    async fn of(&self, registry: &Arc<Registry>, token: &str) -> Option<Arc<Container>> {
        let presented = sha256_hex(token);
        let mut digest = self.digest.lock().await;
        let now = OffsetDateTime::now_utc();
        let found = registry.find(&Source::Token).ok()?;
        if digest.as_ref() == Some(&presented)
            && let Some(found) = found.filter(|found| found.is_live(now))
        {
            return Some(found);
        }
        let container = begin(registry).await?;
        *digest = Some(presented);
        Some(container)
    }
}

async fn begin(registry: &Arc<Registry>) -> Option<Arc<Container>> {
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
