//! Combines the decisions of several bundles.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::denials::{ALLOW, ASK, DENY_ABORT, DENY_CONTINUE, REDACT, cut};
use crate::contract::{Decision, Effect, Flow};
use crate::json::strict;

/// The strictest of several decisions.
#[derive(Debug)]
pub(super) struct Ruling {
    pub(super) decision: &'static str,
    /// The bundle that decided: the first with the strictest decision.
    pub(super) bundle: Option<Arc<str>>,
    /// The bundle's reason. If the bundle gave none, or no bundle decided, a text of the proxy.
    pub(super) reason: Box<str>,
    /// Replaces the arguments, params, result or error. Each bundle saw the replacements of the
    /// earlier bundles, so the last replacement contains all of them.
    pub(super) modified: Option<Box<RawValue>>,
}

impl Ruling {
    /// Combines decisions, given in the order of the bundles in the file. The strictest counts:
    /// `deny_abort`, then `deny_continue`, `ask`, `redact`, `allow`. The ruling on an empty list is
    /// `deny_continue`.
    pub(super) fn of(decisions: Vec<Decision>) -> Self {
        let mut ruling = Self {
            decision: DENY_CONTINUE,
            bundle: None,
            reason: "no bundle returned a decision".into(),
            modified: None,
        };
        let mut strictest = None;
        for decision in decisions {
            let rank = Some(strictness(decision.effect.as_str()));
            if strictest < rank {
                strictest = rank;
                let fallback = || ["decided by the bundle ", &decision.bundle].concat().into();
                ruling.reason = decision.reason.unwrap_or_else(fallback);
                ruling.decision = decision.effect.as_str();
                ruling.bundle = Some(decision.bundle);
            }
            if let Effect::Redact(modified) = decision.effect {
                ruling.modified = Some(modified);
            }
        }
        ruling
    }

    /// The ruling if no bundle for the message could be loaded and `on_unavailable` is `allow`.
    pub(super) fn unavailable() -> Self {
        Self {
            decision: ALLOW,
            bundle: None,
            reason: "policies.on_unavailable: allow".into(),
            modified: None,
        }
    }
}

impl Effect {
    /// The decision as policies, metrics, the audit and denials name it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Allow => ALLOW,
            Self::Redact(_) => REDACT,
            Self::Ask => ASK,
            Self::DenyContinue => DENY_CONTINUE,
            Self::DenyAbort => DENY_ABORT,
        }
    }
}

/// Rank of a decision; the highest is the strictest.
pub(super) fn strictness(decision: &str) -> usize {
    let order = [ALLOW, REDACT, ASK, DENY_CONTINUE, DENY_ABORT];
    order
        .iter()
        .position(|word| *word == decision)
        .unwrap_or(order.len())
}

/// Whether a replacement is an object that all JSON parsers read alike.
pub(super) fn is_replacement(modified: &RawValue) -> bool {
    let text = modified.get();
    text.starts_with('{') && strict::check_at_most(usize::MAX, text.as_bytes()).is_ok()
}

/// Records a decision and its reason, which may be empty, for the audit. Does nothing if the flow
/// already has a decision that is at least as strict.
pub(super) fn record(flow: &mut Flow, decision: &'static str, reason: &str) {
    let record = flow.mcp_record();
    let before = record.decision.map(strictness);
    if before.is_none_or(|before| before < strictness(decision)) {
        record.decision = Some(decision);
        record.reason = (!reason.is_empty()).then(|| cut(reason).into());
    }
}
