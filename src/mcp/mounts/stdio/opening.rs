//! Opens a session: starts the process, and negotiates era and revision.
//!
//! For a modern client, the gateway sends `server/discover` first, unless an earlier session showed
//! that the server is legacy. A legacy server responds with an error, does not respond, or exits.
//! The gateway then sends `initialize`; after an exit, to a new process. For a legacy client, the
//! gateway sends `initialize` first. If the server refuses an `initialize` that was sent to learn
//! its era, the gateway sends `server/discover`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use addons::contract::Container;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::sync::DropGuard;

use super::StdioTransport;
use super::calls::Answer;
use super::session::{Launched, ProcessResources, StdioSession, attend};
use super::shared::Shared;
use crate::mcp::mounts::handshake::{
    Discovered, Refusal, discover_params, initialize_params, read_initialized, refused,
};
use crate::mcp::mounts::process::ChildPlace;
use crate::mcp::mounts::{Described, Era, Events, MountError, Opening, Version};

/// Time limit for the answer to `server/discover` for a modern client. After it, the gateway sends
/// `initialize`. A server that takes longer to start reads both requests, and the gateway drops the
/// late answer to `server/discover`. If this answer made the session a modern one, the server
/// refuses `initialize`.
const PROBE: Duration = Duration::from_secs(5);
/// Time limit for the answer to `initialize`, and to `server/discover` after a refused
/// `initialize`. Package runners such as `npx` first download the server.
const HANDSHAKE: Duration = Duration::from_secs(50);

impl StdioTransport {
    pub(super) async fn open_session(
        &self,
        opening: Opening,
    ) -> Result<Arc<StdioSession>, MountError> {
        let for_modern = opening.version.era() == Era::Modern;
        let launched = self.waiting_or_launched(opening.container.as_ref()).await?;
        let place = Arc::clone(&launched.resources.place);
        let (mut shared, mut ends_when_dropped) = self.serve(launched, &opening);
        let described = match self.negotiate(&shared, &opening).await {
            // The server may have exited because of the unknown request. The second process has the
            // place of the first, which may still be held and may be the last one of the lease.
            Err(MountError::Died { .. }) if for_modern && self.era.lock().is_none() => {
                let again = self.launch(opening.container.as_ref(), &place).await?;
                (shared, ends_when_dropped) = self.serve(again, &opening);
                initialize(&shared, &opening).await?
            }
            described => described?,
        };
        let era = described.version.era();
        if for_modern || era == Era::Modern {
            *self.era.lock() = Some(era);
        }
        Ok(Arc::new(StdioSession {
            shared,
            described,
            timeout: self.server.timeout,
            _ends_when_dropped: ends_when_dropped,
        }))
    }

    /// The process that was started when the lease began, or a new one.
    async fn waiting_or_launched(
        &self,
        container: Option<&Arc<Container>>,
    ) -> Result<Launched, MountError> {
        if let Some(container) = container
            && let Some(waiting) = self.waiting.take(container.lease).await
        {
            if waiting.process.is_running() {
                return Ok(waiting);
            }
            waiting.stop().await;
        }
        let place = self.ports.children.place(container.map(|one| &**one))?;
        self.launch(container, &Arc::new(place)).await
    }

    /// Starts a process.
    pub(super) async fn launch(
        &self,
        container: Option<&Arc<Container>>,
        place: &Arc<ChildPlace>,
    ) -> Result<Launched, MountError> {
        let egress = self.egress(container)?;
        let config = self.config(container, egress.as_ref())?;
        let process = (self.make)();
        process.start(config).await?;
        let children = &self.ports.children;
        let resources = ProcessResources {
            _running: children.running(&self.server.name, process.runtime()),
            _egress: egress,
            place: Arc::clone(place),
            most_values: (self.ports.limits)().values,
        };
        Ok(Launched { process, resources })
    }

    /// Serves a process. Dropping the guard ends it.
    fn serve(&self, launched: Launched, opening: &Opening) -> (Arc<Shared>, DropGuard) {
        let (shared, lines) = Shared::new(&self.server.name, opening);
        tokio::spawn(attend(Arc::clone(&shared), launched, lines));
        let ends_when_dropped = shared.ended.clone().drop_guard();
        (shared, ends_when_dropped)
    }

    async fn negotiate(&self, shared: &Shared, opening: &Opening) -> Result<Described, MountError> {
        let era = *self.era.lock();
        match opening.version.era() {
            Era::Modern if era == Some(Era::Legacy) => initialize(shared, opening).await,
            Era::Modern => match discover(shared, opening, PROBE).await {
                Ok(Some(described)) => Ok(described),
                Ok(None) => initialize(shared, opening).await,
                Err(MountError::TimedOut) => initialize_or_discover(shared, opening).await,
                Err(error) => Err(error),
            },
            Era::Legacy => initialize_or_discover(shared, opening).await,
        }
    }
}

/// Sends `initialize`, and `server/discover` if the server refuses it.
async fn initialize_or_discover(
    shared: &Shared,
    opening: &Opening,
) -> Result<Described, MountError> {
    match initialize(shared, opening).await {
        Err(refused @ MountError::Protocol(_)) => {
            let discovered = discover(shared, opening, HANDSHAKE).await;
            discovered.ok().flatten().ok_or(refused)
        }
        initialized => initialized,
    }
}

/// Sends `server/discover`; `None` if the server responds like a legacy server, or does not support
/// 2026-07-28.
async fn discover(
    shared: &Shared,
    opening: &Opening,
    limit: Duration,
) -> Result<Option<Described>, MountError> {
    let params = discover_params(&opening.capabilities)?;
    let method = "server/discover";
    let answer = request(shared, method, &params, limit);
    let result = match answer.await? {
        Ok(result) => result,
        Err(error) => match Refusal::of(&error) {
            Refusal::Supported(versions) if !versions.contains(&Version::V2026_07_28) => {
                return Ok(None);
            }
            Refusal::Other => return Ok(None),
            Refusal::Supported(_) | Refusal::Modern => return Err(refused(method, &error)),
        },
    };
    let Discovered {
        versions,
        described,
    } = Discovered::read(&shared.server, &result)?;
    if !versions.contains(&described.version) {
        return Ok(None);
    }
    shared.may_request.store(false, Ordering::Relaxed);
    Ok(Some(described))
}

async fn initialize(shared: &Shared, opening: &Opening) -> Result<Described, MountError> {
    let version = opening.version.min(Version::NEWEST_LEGACY);
    // Set beforehand: the server may send requests as soon as it has answered.
    shared.may_request.store(true, Ordering::Relaxed);
    let params = initialize_params(version, &opening.capabilities)?;
    let method = "initialize";
    let answer = request(shared, method, &params, HANDSHAKE);
    let result = answer.await?.map_err(|error| refused(method, &error))?;
    let described = read_initialized(&shared.server, &result)?;
    let method = "notifications/initialized";
    shared.send_notification(method, None).await?;
    Ok(described)
}

/// Sends a request of the handshake, and waits at most `limit` for the answer.
async fn request(shared: &Shared, method: &str, params: &RawValue, limit: Duration) -> Answer {
    let requesting = shared.send_request(method, Some(params), Events::none(), false);
    let answer = timeout(limit, requesting).await;
    answer.unwrap_or(Err(MountError::TimedOut))
}
