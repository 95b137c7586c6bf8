//! Servers over HTTP. Three transports exist: Streamable HTTP with `initialize` (legacy [`Era`]),
//! Streamable HTTP with independent requests (modern era), and HTTP+SSE (2024-11-05).
//!
//! Each request to a server is a separate flow through the chain, under the name `mcp:SERVER`
//! ([`OwnClient`](crate::http::OwnClient)). A session of a lease ends with the lease.

mod answer;
mod drain;
mod event_stream;
mod headers;
mod http_sse;
mod legacy;
mod legacy_peer;
mod mirrored_params;
mod modern;
mod peer;
mod wire;

pub use event_stream::{EventReader, StreamEvent};
pub use headers::request_fields;
pub use mirrored_params::add as add_param_fields;

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{BoxFuture, Denial, Fault, System};
use addons::mcp::{HttpSettings, HttpTransport as Kind, ServerSettings};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use self::http_sse::HttpSseSession;
use self::legacy::{LegacySession, NotOpened};
use self::modern::{ModernSession, Probed, probe};
use self::peer::Inbox;
use self::wire::{Target, Wire};
use super::dropped::Dropped;
use super::handshake::{Refusal, refused};
use super::{MountError, MountSession, Opening, Transport};
use crate::http::Service;
use crate::mcp::version::{Era, Version};

/// Time limit for opening a session over HTTP+SSE as a fallback, without `type: sse`.
const FALLBACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Parts that all transports over HTTP share.
#[derive(Clone)]
pub struct HttpParts {
    /// Sends requests through the chain.
    pub service: Arc<Service>,
    /// Counts dropped messages.
    pub dropped: Dropped,
    /// Tasks that may outlive a session: readers of streams, DELETE requests and cancellations.
    pub tasks: TaskTracker,
}

/// Opens sessions with one server.
#[derive(Clone)]
pub struct HttpTransport(Arc<Inner>);

struct Inner {
    parts: HttpParts,
    server: Arc<str>,
    system: System,
    timeout: Duration,
    kind: Kind,
    /// An error if the settings are invalid.
    target: Result<Target, String>,
}

impl HttpTransport {
    /// Creates a transport to the server of these settings.
    pub fn new(parts: HttpParts, server: &ServerSettings, settings: &HttpSettings) -> Self {
        let endpoint = &settings.endpoint;
        Self(Arc::new(Inner {
            parts,
            server: Arc::clone(&server.name),
            system: System {
                name: format!("mcp:{}", server.name).into(),
                hosts: vec![(endpoint.host.clone(), endpoint.port)],
                trust_private: true,
                url_secrets: settings.url_secrets.clone(),
            },
            timeout: server.timeout,
            kind: settings.transport,
            target: Target::of(settings),
        }))
    }

    fn timeout(&self) -> Duration {
        self.0.timeout
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.parts.tasks.spawn(task);
    }

    fn wire(&self, opening: &Opening) -> Result<Wire, MountError> {
        let inner = &*self.0;
        let target = inner.target.clone().map_err(MountError::CannotStart)?;
        let client = opening.http_client(&inner.parts.service, &inner.system)?;
        Ok(Wire {
            server: Arc::clone(&inner.server),
            client,
            target,
        })
    }

    fn inbox(&self, opening: &Opening) -> Inbox {
        Inbox::new(&self.0.server, &self.0.parts.dropped, opening)
    }

    async fn open_one(&self, opening: &Opening) -> Result<Arc<dyn MountSession>, MountError> {
        match (self.0.kind, opening.version.era()) {
            (Kind::Sse, _) => Ok(HttpSseSession::open(self, opening).await?),
            (Kind::Streamable, Era::Modern) => self.modern_first(opening).await,
            (Kind::Streamable, Era::Legacy) => self.legacy_first(opening).await,
        }
    }

    /// Opens a session for a modern client.
    async fn modern_first(&self, opening: &Opening) -> Result<Arc<dyn MountSession>, MountError> {
        let mut wire = self.wire(opening)?;
        let mut discover_error = None;
        let version = match probe(&mut wire, opening).await? {
            Probed::Modern(found) if found.versions.contains(&Version::V2026_07_28) => {
                return Ok(ModernSession::new(self, opening, wire, found.described));
            }
            Probed::Modern(found) => newest_legacy(&found.versions)?,
            Probed::Refused(error) => match Refusal::of(&error) {
                Refusal::Supported(versions) => newest_legacy(&versions)?,
                Refusal::Modern => return Err(refused("server/discover", &error)),
                Refusal::Other => Version::NEWEST_LEGACY,
            },
            Probed::NotModern(error) => {
                discover_error = Some(error);
                Version::NEWEST_LEGACY
            }
        };
        let with_discover_error = |error| match (error, &discover_error) {
            (MountError::Protocol(error), Some(before)) => MountError::Protocol(format!(
                "initialize failed: {error}; server/discover failed before: {before}"
            )),
            (error, _) => error,
        };
        match LegacySession::open(self, opening, version).await {
            Ok(session) => Ok(session),
            Err(NotOpened::Refused(error)) => Err(refused("initialize", &error)),
            Err(NotOpened::NoEndpoint(error)) => {
                let opened = self.fall_back_to_sse(opening, error).await;
                opened.map_err(with_discover_error)
            }
            Err(NotOpened::Failed(error)) => Err(with_discover_error(error)),
        }
    }

    /// Opens a session for a legacy client.
    async fn legacy_first(&self, opening: &Opening) -> Result<Arc<dyn MountSession>, MountError> {
        let opened = LegacySession::open(self, opening, opening.version).await;
        let (error, may_be_sse) = match opened {
            Ok(session) => return Ok(session),
            Err(NotOpened::Refused(error)) => (refused("initialize", &error), false),
            Err(NotOpened::NoEndpoint(error)) => (error, true),
            Err(NotOpened::Failed(error @ MountError::Protocol(_))) => (error, false),
            Err(NotOpened::Failed(error)) => return Err(error),
        };
        let mut wire = self.wire(opening)?;
        match probe(&mut wire, opening).await {
            Ok(Probed::Modern(found)) if found.versions.contains(&Version::V2026_07_28) => {
                Ok(ModernSession::new(self, opening, wire, found.described))
            }
            _ if may_be_sse => self.fall_back_to_sse(opening, error).await,
            _ => Err(error),
        }
    }

    /// Opens a session over HTTP+SSE, after the server answered `initialize` with 400, 404 or 405
    /// (2025-11-25, basic/transports, "Backwards Compatibility"). If that fails or takes longer
    /// than [`FALLBACK_TIMEOUT`], returns `initialize_error`.
    async fn fall_back_to_sse(
        &self,
        opening: &Opening,
        initialize_error: MountError,
    ) -> Result<Arc<dyn MountSession>, MountError> {
        let opened = timeout(FALLBACK_TIMEOUT, HttpSseSession::open(self, opening)).await;
        let Ok(Ok(session)) = opened else {
            return Err(initialize_error);
        };
        let server = &self.0.server;
        tracing::info!(
            %server,
            "an MCP server uses HTTP+SSE; `type: sse` in mcp.yaml avoids the failing attempts with \
             Streamable HTTP"
        );
        Ok(session)
    }
}

impl Transport for HttpTransport {
    fn open<'a>(
        &'a self,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Arc<dyn MountSession>, MountError>> {
        Box::pin(async move {
            let opened = timeout(self.0.timeout, self.open_one(&opening)).await;
            opened.unwrap_or(Err(MountError::TimedOut))
        })
    }
}

fn newest_legacy(versions: &[Version]) -> Result<Version, MountError> {
    let mut legacy = versions
        .iter()
        .filter(|version| version.era() == Era::Legacy);
    legacy.next().copied().ok_or_else(|| {
        MountError::Protocol(
            "the server supports no protocol revision that the gateway supports".to_owned(),
        )
    })
}

/// Converts a denial for a fault of the server to [`MountError::CannotStart`], and any other denial
/// to [`MountError::Denied`].
fn cannot_start(denial: Denial) -> MountError {
    match denial.code().fault() {
        Fault::Upstream => MountError::CannotStart(denial.sentence().to_owned()),
        Fault::Policy | Fault::Client | Fault::Us => MountError::Denied(denial),
    }
}
