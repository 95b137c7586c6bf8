//! The policy servers that containers see: the policy in force, proposals of another one, and the
//! wait for people's decisions. They are part of the gateway, and hold no connection.

mod definitions;
mod results;
mod session;
mod turn;

use std::sync::{Arc, OnceLock};

use addons::contract::{BoxFuture, Container, Effect};
use addons::mcp::PolicyServer;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::{MountError, MountSession, Opening, Transport};
use crate::approvals::Ledger;
use crate::mcp::policy::PolicyKeeper;
use crate::mcp::version::Version;
pub use definitions::{policy_uri, resources, tools};
pub use results::{contents, failed, members_of, resource_not_found, structured, text_argument};
use session::PolicySession;

/// What the policies would decide about a call.
#[derive(Clone, Debug)]
pub struct Advice {
    pub decision: Effect,
    pub rationale: String,
}

/// Predicts decisions of policies.
pub trait Advisor: Send + Sync {
    /// Judges a call in a dry run, without a question to people and without a record. `tool` is the
    /// exposed name. The error says why there is no decision.
    fn advise(
        &self,
        container: Arc<Container>,
        tool: String,
        arguments: Option<Box<RawValue>>,
    ) -> BoxFuture<'_, Result<Advice, String>>;
}

/// What the policy servers use.
pub struct PolicyDesk {
    pub keeper: Arc<PolicyKeeper>,
    pub ledger: Arc<Ledger>,
    /// Cancelled when the server begins to stop, which ends the waits for people.
    pub stopping: CancellationToken,
    /// Set once the gateway is built.
    advisor: OnceLock<Arc<dyn Advisor>>,
}

impl PolicyDesk {
    pub fn new(
        keeper: &Arc<PolicyKeeper>,
        ledger: &Arc<Ledger>,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            keeper: Arc::clone(keeper),
            ledger: Arc::clone(ledger),
            stopping,
            advisor: OnceLock::new(),
        })
    }

    /// Has `advisor` predict decisions from now on. Only the first call has an effect.
    pub fn advise_with(&self, advisor: Arc<dyn Advisor>) {
        // The gateway is built once.
        let _ = self.advisor.set(advisor);
    }

    /// As `Advisor::advise`.
    pub async fn advise(
        &self,
        container: Arc<Container>,
        tool: String,
        arguments: Option<Box<RawValue>>,
    ) -> Result<Advice, String> {
        match self.advisor.get() {
            Some(advisor) => advisor.advise(container, tool, arguments).await,
            None => Err("the gateway is starting".to_owned()),
        }
    }

    /// The text of the policy in force, or why there is none to show.
    pub fn policy(&self) -> Result<Arc<str>, String> {
        self.keeper.current().policy.text.clone()
    }

    /// The name of the policy's file.
    pub fn file_name(&self) -> &'static str {
        let snapshot = self.keeper.current();
        snapshot.config.addons.mcp.policies.file_name()
    }
}

/// Opens sessions with one policy server.
pub struct PolicyTransport {
    desk: Arc<PolicyDesk>,
    server: PolicyServer,
}

impl PolicyTransport {
    pub fn new(desk: &Arc<PolicyDesk>, server: PolicyServer) -> Self {
        Self {
            desk: Arc::clone(desk),
            server,
        }
    }
}

impl Transport for PolicyTransport {
    fn open<'a>(
        &'a self,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Arc<dyn MountSession>, MountError>> {
        Box::pin(async move {
            // Results lack the members that modern revisions require, and the gateway adds them only
            // to results of legacy sessions.
            let version = opening.version.min(Version::NEWEST_LEGACY);
            let described = definitions::described(self.server, version)?;
            let ended = opening.ended();
            let session = PolicySession::new(&self.desk, self.server, described, ended);
            Ok(Arc::new(session) as Arc<dyn MountSession>)
        })
    }
}
