//! Opens a session: starts the process, and negotiates era and revision.
//!
//! For a modern client, the gateway sends `server/discover` first. A legacy server answers with an
//! error, does not answer, or exits. The gateway then sends `initialize`; after an exit, to a new
//! process. For a legacy client, the gateway sends `initialize` first, and `server/discover` if
//! the server refuses `initialize`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::StdioTransport;
use super::session::{Belongings, StdioSession, attend, no_events};
use super::shared::Shared;
use crate::mcp::mounts::handshake::{
    Discovered, Initialized, Refusal, discover_params, initialize_params,
};
use crate::mcp::mounts::{Described, Era, MountError, Opening, Version};

/// Time limit for the answer to `server/discover` for a modern client, after which `initialize` is
/// sent. A server that is still starting then answers both.
const PROBE: Duration = Duration::from_secs(5);
/// Time limit for the answer to `initialize`, and to `server/discover` after a refused
/// `initialize`. Package runners such as `npx` first download the server.
const HANDSHAKE: Duration = Duration::from_secs(50);

/// The eras of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    /// The legacy era alone.
    Legacy,
    /// The modern era, and perhaps the legacy one too.
    Modern,
}

/// The result of a handshake.
struct Agreed {
    version: Version,
    described: Described,
}

/// A running process before its session is open. Dropping it ends the process unless `kept` is set.
struct Conversation {
    shared: Arc<Shared>,
    kept: bool,
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if !self.kept {
            self.shared.ended.cancel();
        }
    }
}

impl StdioTransport {
    pub(super) async fn open_session(
        &self,
        opening: Opening,
    ) -> Result<Arc<StdioSession>, MountError> {
        let mut conversation = self.start(&opening).await?;
        let agreed = match self.agree(&conversation, &opening).await {
            // The server may have exited because of the unknown request.
            Err(MountError::Died { .. }) if self.may_be_legacy(&opening) => {
                conversation = self.start(&opening).await?;
                initialize(&conversation.shared, &opening).await?
            }
            agreed => agreed?,
        };
        let era = agreed.version.era();
        match era {
            Era::Modern => self.remember(Speaks::Modern),
            Era::Legacy if opening.version.era() == Era::Modern => self.remember(Speaks::Legacy),
            Era::Legacy => {}
        }
        conversation.kept = true;
        Ok(Arc::new(StdioSession {
            shared: Arc::clone(&conversation.shared),
            version: agreed.version,
            described: agreed.described,
            timeout: self.timeout(),
        }))
    }

    fn remember(&self, speaks: Speaks) {
        *self.speaks.lock() = Some(speaks);
    }

    fn may_be_legacy(&self, opening: &Opening) -> bool {
        let speaks = *self.speaks.lock();
        opening.version.era() == Era::Modern && speaks.is_none()
    }

    async fn start(&self, opening: &Opening) -> Result<Conversation, MountError> {
        let place = self.ports.children.place(opening.container.as_deref())?;
        let way_out = self.way_out(opening)?;
        let config = self.config(opening, way_out.as_ref())?;
        let process = (self.make)();
        process.start(config).await?;
        let (shared, lines) = Shared::new(&self.server.name, opening.unsolicited.clone());
        let belongings = Belongings {
            ports: Arc::clone(&self.ports),
            place,
            way_out,
            most_values: (self.ports.limits)().values,
        };
        tokio::spawn(attend(Arc::clone(&shared), process, lines, belongings));
        Ok(Conversation {
            shared,
            kept: false,
        })
    }

    async fn agree(
        &self,
        conversation: &Conversation,
        opening: &Opening,
    ) -> Result<Agreed, MountError> {
        let shared = &conversation.shared;
        let speaks = *self.speaks.lock();
        match opening.version.era() {
            Era::Modern if speaks == Some(Speaks::Legacy) => initialize(shared, opening).await,
            Era::Modern => match discover(shared, opening, PROBE).await {
                Ok(Found::Modern(agreed)) => Ok(agreed),
                Ok(Found::Legacy) | Err(MountError::TimedOut) => initialize(shared, opening).await,
                Err(error) => Err(error),
            },
            Era::Legacy => match initialize(shared, opening).await {
                Err(refused @ MountError::Protocol(_)) => {
                    match discover(shared, opening, HANDSHAKE).await {
                        Ok(Found::Modern(agreed)) => Ok(agreed),
                        Ok(Found::Legacy) | Err(_) => Err(refused),
                    }
                }
                initialized => initialized,
            },
        }
    }
}

/// The result of `server/discover`.
enum Found {
    Modern(Agreed),
    Legacy,
}

async fn discover(
    shared: &Shared,
    opening: &Opening,
    limit: Duration,
) -> Result<Found, MountError> {
    let params = discover_params(&opening.capabilities)?;
    let method = "server/discover";
    let answer = shared.ask(method, Some(&params), no_events(), Some(limit), false);
    let result = match answer.await? {
        Ok(result) => result,
        Err(error) => match Refusal::of(&error) {
            Refusal::Speaks(versions) if versions.iter().any(is_modern) => {
                return Err(refused("server/discover", &error.message));
            }
            Refusal::Modern => return Err(refused("server/discover", &error.message)),
            Refusal::Speaks(_) | Refusal::Other => return Ok(Found::Legacy),
        },
    };
    let discovered = Discovered::read(&result)?;
    let version = discovered.versions.into_iter().find(is_modern);
    Ok(match version {
        Some(version) => {
            let _ = shared.version.set(version);
            Found::Modern(Agreed {
                version,
                described: discovered.described,
            })
        }
        None => Found::Legacy,
    })
}

fn is_modern(version: &Version) -> bool {
    version.era() == Era::Modern
}

async fn initialize(shared: &Shared, opening: &Opening) -> Result<Agreed, MountError> {
    let version = opening.version.min(Version::NEWEST_LEGACY);
    // Set beforehand: the server may send requests as soon as it has answered.
    let _ = shared.version.set(version);
    let params = initialize_params(version, &opening.capabilities)?;
    let method = "initialize";
    let answer = shared.ask(method, Some(&params), no_events(), Some(HANDSHAKE), false);
    let result: Box<RawValue> = match answer.await? {
        Ok(result) => result,
        Err(error) => return Err(refused(method, &error.message)),
    };
    let Initialized { version, described } = Initialized::read(&result)?;
    shared.tell("notifications/initialized", None).await?;
    Ok(Agreed { version, described })
}

fn refused(method: &str, message: &str) -> MountError {
    let message: String = message.chars().take(200).collect();
    MountError::Protocol(format!("the server refused {method}: {message}"))
}
