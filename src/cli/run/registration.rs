//! The container of a run, registered over the server's admin socket.

use std::path::PathBuf;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Run;
use crate::admin::RegistrationBody;
use crate::cli::client::Client;
use crate::cli::exit::{Failure, code};
use crate::registry::RepoEntry;

/// The lifetime of a lease with `--server`, which the launcher renews every [`RENEWAL`].
const LEASE: Duration = Duration::from_secs(60);
/// The interval of renewals. If one fails, the next still comes before the lease expires.
pub const RENEWAL: Duration = Duration::from_secs(20);
/// The lifetime of a lease at the run's own appliance, ten years: the lease ends with the
/// appliance, not by expiry.
const RUN_LEASE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// The registered container of a run.
pub struct Registration {
    pub client: Client,
    body: RegistrationBody,
    lifetime: Duration,
    /// The path of the container's Unix listener.
    pub listener: PathBuf,
}

impl Registration {
    /// Registers a container with its own Unix listener.
    pub async fn begin(socket: PathBuf, run: &Run) -> Result<Self, Failure> {
        let begun = OffsetDateTime::now_utc().unix_timestamp_nanos();
        let (named_by, lifetime) = match run.server {
            Some(_) => ("--server", LEASE),
            None => ("of the appliance of this run", RUN_LEASE),
        };
        let mut registration = Self {
            client: Client::new(socket, named_by),
            body: RegistrationBody {
                container_id: format!("run-{}-{begun:x}", std::process::id()),
                listener: Some("unix".to_owned()),
                repos: run.repos.iter().cloned().map(RepoEntry::Name).collect(),
                auth_mode: Some(run.mode.clone()),
                ..RegistrationBody::default()
            },
            lifetime,
            listener: PathBuf::new(),
        };
        registration.renew().await?;
        Ok(registration)
    }

    /// The container's id.
    pub fn id(&self) -> &str {
        &self.body.container_id
    }

    /// Registers the container, or extends its lease. If the lease has ended, the container gets a
    /// new lease with another listener. Returns whether `listener` has changed; the first call
    /// returns `true`.
    pub async fn renew(&mut self) -> Result<bool, Failure> {
        let end = OffsetDateTime::now_utc() + self.lifetime;
        self.body.expires_at = Some(end.format(&Rfc3339).map_err(Failure::internal)?);
        let socket = self.client.register(&self.body).await?.socket;
        let listener = PathBuf::from(socket.ok_or_else(|| {
            Failure::new(
                code::UNAVAILABLE,
                "the server opened no listener: does the server have another version than this command?",
            )
        })?);
        let moved = listener != self.listener;
        self.listener = listener;
        Ok(moved)
    }

    /// Unregisters the container, which ends its lease.
    pub async fn end(self) {
        // If this fails, the lease expires later.
        let _ = self.client.unregister(self.id(), false).await;
    }
}
