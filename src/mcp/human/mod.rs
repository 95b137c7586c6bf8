//! MCP for people: the servers `policy_reader` and `policy_approver`.
//!
//! A person comes over the admin socket, or from loopback with a token. Each request is answered by
//! itself, without a session; it is not routed to the servers that containers see, and no container's
//! request gets here.

mod answer;
mod tokens;

use std::sync::{Arc, OnceLock, Weak};

use addons::contract::{ApprovalId, BoxFuture, Container};
use addons::mcp::HumanJwt;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::message::Outcome;
use super::mounts::PolicyDesk;

use tokens::HumanTokens;
pub use tokens::{TokenError, is_token};

/// The tokens that are verified at once. Anybody on this machine may send some.
const MAX_VERIFIED: usize = 4;

/// An act of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Approves a question with the default scope of its kind.
    Approve(ApprovalId),
    /// Denies a question.
    Deny(ApprovalId),
    /// Approves a proposed policy.
    SetPolicy(ApprovalId),
    /// Puts a policy in force.
    SetPolicyText(String),
}

/// What the server does for a person. Errors are sentences for the person.
pub trait Decisions: Send + Sync {
    /// Records that a person sent a request with this method, about a tool or a resource.
    fn received(&self, by: &Arc<str>, method: &str, named: Option<&str>);

    /// Records that a person's act was refused.
    fn refused(&self, by: &Arc<str>, act: &str, why: &str);

    /// Does an act and records who did it. Returns the question, or the change of the policy.
    fn act(&self, by: Arc<str>, act: Act) -> BoxFuture<'_, Result<Value, String>>;

    /// The open questions, the newest first.
    fn pending(&self) -> BoxFuture<'_, Result<Vec<Value>, String>>;

    /// An open question; `None` if there is none with this id.
    fn question(&self, id: ApprovalId) -> BoxFuture<'_, Result<Option<Value>, String>>;

    /// The live lease of a container.
    fn container(&self, id: &str) -> Result<Arc<Container>, String>;
}

/// Answers people.
pub struct People {
    desk: Arc<PolicyDesk>,
    /// Set when the admin API starts, which makes the decisions.
    decisions: OnceLock<Weak<dyn Decisions>>,
    tokens: Arc<HumanTokens>,
    verifying: Semaphore,
    /// The runtime of the server: a change of the policy blocks, which a connection's thread must not.
    runtime: Handle,
}

impl People {
    /// Creates the server, in the calling runtime.
    pub fn new(desk: &Arc<PolicyDesk>) -> Arc<Self> {
        Arc::new(Self {
            desk: Arc::clone(desk),
            decisions: OnceLock::new(),
            tokens: Arc::default(),
            verifying: Semaphore::new(MAX_VERIFIED),
            runtime: Handle::current(),
        })
    }

    /// Has `decisions` decide from now on. Only the first call has an effect.
    pub fn decide_with(&self, decisions: Weak<dyn Decisions>) {
        // The server starts once.
        let _ = self.decisions.set(decisions);
    }

    /// The person of a token, as the audit names them.
    pub async fn verify(
        &self,
        settings: &Arc<HumanJwt>,
        token: &str,
    ) -> Result<Arc<str>, TokenError> {
        // Never closed.
        let _permit = self
            .verifying
            .acquire()
            .await
            .map_err(|_| TokenError::Keys)?;
        let (tokens, settings) = (Arc::clone(&self.tokens), Arc::clone(settings));
        let token = token.to_owned();
        let verify = move || tokens.verify(&settings, &token, OffsetDateTime::now_utc());
        let subject = self.runtime.spawn_blocking(verify).await;
        let subject = subject.map_err(|_panicked| TokenError::Keys)??;
        // Marked, so that no subject reads like a user of the machine.
        Ok(format!("token {subject}").into())
    }

    /// Answers one request of a person, whom the audit knows as `by`. An act is done as a whole even
    /// if the future is dropped.
    pub async fn request(
        self: &Arc<Self>,
        by: Arc<str>,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    ) -> Outcome {
        let people = Arc::clone(self);
        let answering = async move { people.answer(by, method, params.as_deref()).await };
        let answered = self.runtime.spawn(answering).await;
        answered.unwrap_or_else(|_panicked| Err(answer::internal()))
    }
}
