//! Processes that start when leases begin, and wait for the first client of their lease. The
//! handshake declares what the client can do, so it follows when the client comes.

use std::collections::HashMap;
use std::sync::Arc;

use addons::contract::{Container, LeaseId};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::StdioTransport;
use super::session::Launched;
use crate::mcp::mounts::MountError;
use crate::mcp::warnings::{Subject, warn};

/// Takes the process that waits, or starts.
type Taker = oneshot::Sender<Launched>;

/// The processes of one server that start or wait, by lease.
#[derive(Default)]
pub(super) struct Waiting(Mutex<HashMap<LeaseId, oneshot::Sender<Taker>>>);

impl Waiting {
    /// Takes the process that was started when the lease began; waits if it is being started. `None`
    /// if there is none, or it could not be started or has ended.
    pub async fn take(&self, lease: LeaseId) -> Option<Launched> {
        let waiting = self.0.lock().remove(&lease)?;
        let (taker, taken) = oneshot::channel();
        waiting.send(taker).ok()?;
        taken.await.ok()
    }

    /// Announces a process.
    fn add(&self, lease: LeaseId) -> oneshot::Receiver<Taker> {
        let (waiting, taker) = oneshot::channel();
        self.0.lock().insert(lease, waiting);
        taker
    }

    fn remove(&self, lease: LeaseId) {
        self.0.lock().remove(&lease);
    }
}

impl StdioTransport {
    /// Starts a process for the first session of a lease. It ends with the lease, and when `retired`
    /// is cancelled. Returns whether a process was started.
    pub(super) async fn launch_early(
        self: Arc<Self>,
        container: Arc<Container>,
        retired: CancellationToken,
    ) -> bool {
        let lease = container.lease;
        let taker = self.waiting.add(lease);
        let launching = async {
            let place = Arc::new(self.ports.children.early_place(&container)?);
            self.launch(Some(&container), &place).await
        };
        let launched = tokio::select! {
            // This start may have waited for others.
            biased;
            () = retired.cancelled() => Err(MountError::Died { exit: None }),
            () = container.ended().cancelled() => Err(MountError::Died { exit: None }),
            launched = launching => launched,
        };
        let is_launched = launched.is_ok();
        match launched {
            Ok(launched) => {
                tokio::spawn(self.keep(launched, taker, container, retired));
            }
            Err(error) => {
                self.waiting.remove(lease);
                if !retired.is_cancelled() && !container.ended().is_cancelled() {
                    self.not_waiting(&error);
                }
            }
        }
        is_launched
    }

    /// Keeps a process until a client takes it, or it must end.
    async fn keep(
        self: Arc<Self>,
        launched: Launched,
        taker: oneshot::Receiver<Taker>,
        container: Arc<Container>,
        retired: CancellationToken,
    ) {
        let process = Arc::clone(&launched.process);
        tokio::select! {
            biased;
            Ok(taker) = taker => {
                // The client may have left.
                if let Err(launched) = taker.send(launched) {
                    launched.stop().await;
                }
                return;
            }
            () = retired.cancelled() => {}
            () = container.ended().cancelled() => {}
            () = process.ended() => {
                self.not_waiting(&MountError::Died { exit: process.exit_code() });
            }
        }
        self.waiting.remove(container.lease);
        launched.stop().await;
    }

    fn not_waiting(&self, error: &MountError) {
        let server = &self.server.name;
        warn(server, Subject::Session, |left_out| {
            tracing::warn!(%server, left_out, %error, "an MCP server that was started with a lease does not run; the first message starts it again");
        });
    }
}
