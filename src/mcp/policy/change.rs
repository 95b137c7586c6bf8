//! Changes of the policy that people set, and why there is none.

use std::io;
use std::sync::Arc;

use addons::contract::{ApprovalId, QuestionLimit};
use addons::json::sha256_hex;
use thiserror::Error;

use crate::approvals::{Refused, StoreError};
use crate::config::StoredPolicy;

/// The longest policy that can be proposed or set, in bytes. A question has room for two of them unless
/// many of their characters are escaped in JSON.
pub const MAX_SOURCE: usize = 64 << 10;

/// A change of the policy in force, for the audit.
#[derive(Clone, Debug)]
pub struct PolicyChange {
    /// The bundle whose policy changed.
    pub bundle: Arc<str>,
    /// SHA-256 of the text that was set, in hexadecimal; `None` if the bundle is in force again.
    pub digest: Option<String>,
    /// The approved question; `None` if a person set a text, or returned to the bundle.
    pub proposal: Option<ApprovalId>,
    /// Who set the text; empty if the bundle is in force again.
    pub set_by: Arc<str>,
}

impl PolicyChange {
    /// The change to this policy.
    pub(super) fn to(policy: &StoredPolicy) -> Self {
        Self {
            bundle: policy.bundle.as_str().into(),
            digest: Some(sha256_hex(&policy.source)),
            proposal: policy.proposal.as_deref().and_then(ApprovalId::parse),
            set_by: policy.set_by.as_str().into(),
        }
    }
}

/// Why a policy was not proposed, or not set.
#[derive(Debug, Error)]
pub enum NotSet {
    #[error("no policy can be replaced: policies.editable in mcp.yaml names no bundle")]
    Off,
    #[error("the policy must be a text of 1 to {MAX_SOURCE} bytes")]
    Length,
    #[error("{0}")]
    Characters(String),
    #[error("this is the policy in force already")]
    Same,
    #[error("the policy in force cannot be shown to a person: {0}")]
    NoText(String),
    #[error("the question {0} is not about a policy")]
    NoProposal(ApprovalId),
    #[error(
        "the policy in force has changed since the proposal was made: what a person saw is not what \
         would be in force; propose it again"
    )]
    Outdated,
    #[error("the policy cannot be loaded, so nothing was changed: {0}")]
    Invalid(String),
    /// The change is stored, and decided if it was proposed.
    #[error(
        "the change is stored, but not in force: the policies cannot be loaded, and those that were \
         loaded before stay in force until they can be: {}", .0.join("; ")
    )]
    NotLoaded(Vec<String>),
    #[error(
        "the policy cannot be stored: {0}; a proposal whose approval is recorded is put in force \
         before the next change, or at the next start"
    )]
    File(#[from] io::Error),
    #[error("no policy is stored: the bundle is in force")]
    NotStored,
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(
        "the policy in force and the proposed one are too long to be shown to a person together; a \
         person can set the text without a question"
    )]
    TooLong,
    #[error("no person can be asked now: {0}")]
    Full(QuestionLimit),
    #[error("a person denied the same proposal{}", .0.as_ref().map(|words| format!(": {words}")).unwrap_or_default())]
    Denied(Option<Arc<str>>),
    #[error("the server failed; look at its log")]
    Broken,
}

impl From<StoreError> for NotSet {
    fn from(error: StoreError) -> Self {
        Refused::from(error).into()
    }
}
