//! Combines the decisions of several bundles.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::denials::cut;
use super::revision::bundles_revision;
use crate::contract::{Decision, Effect, Flow};
use crate::json::strict;

/// The strictest of several decisions.
#[derive(Debug)]
pub(super) struct Ruling {
    pub(super) effect: Effect,
    /// The bundle that decided: the first with the strictest decision.
    pub(super) bundle: Option<Arc<str>>,
    /// The bundle's reason. If the bundle gave none, or no bundle decided, a text of the proxy.
    pub(super) reason: Box<str>,
    /// Replaces the arguments, params, result or error. Each bundle saw the replacements of the
    /// earlier bundles, so the last replacement contains all of them.
    pub(super) modified: Option<Box<RawValue>>,
    /// The `metadata` of the last bundle that returned some.
    pub(super) metadata: Option<Box<RawValue>>,
    /// The revision of all bundles that decided; empty unless the effect is `ask`.
    pub(super) revision: String,
}

impl Ruling {
    /// Combines decisions, given in the order of the bundles in the file. The strictest counts. The
    /// ruling on an empty list is `deny_continue`.
    pub(super) fn of(decisions: Vec<Decision>) -> Self {
        let mut ruling = Self {
            effect: Effect::DenyContinue,
            bundle: None,
            reason: "no bundle returned a decision".into(),
            modified: None,
            metadata: None,
            revision: String::new(),
        };
        if decisions.iter().map(|decision| decision.effect).max() == Some(Effect::Ask) {
            let bundles = decisions.iter();
            ruling.revision =
                bundles_revision(bundles.map(|decision| (&*decision.bundle, decision.revision)));
        }
        let mut strictest = None;
        for decision in decisions {
            if strictest < Some(decision.effect) {
                strictest = Some(decision.effect);
                let fallback = || ["decided by the policy ", &decision.bundle].concat().into();
                ruling.reason = decision.reason.unwrap_or_else(fallback);
                ruling.effect = decision.effect;
                ruling.bundle = Some(decision.bundle);
            }
            ruling.modified = decision.modified.or(ruling.modified);
            ruling.metadata = decision.metadata.or(ruling.metadata);
        }
        ruling
    }

    /// The ruling if no policy decides on the message, and the message passes nevertheless.
    pub(super) fn undecided(reason: &str) -> Self {
        Self {
            effect: Effect::Allow,
            bundle: None,
            reason: reason.into(),
            modified: None,
            metadata: None,
            revision: String::new(),
        }
    }
}

/// Whether a replacement is an object that all JSON parsers read alike.
pub(super) fn is_replacement(modified: &RawValue) -> bool {
    let text = modified.get();
    text.starts_with('{') && strict::check_at_most(usize::MAX, text.as_bytes()).is_ok()
}

/// Records a decision and its reason, which may be empty, for the audit. Does nothing if the flow
/// already has a decision that is at least as strict.
pub(super) fn record(flow: &mut Flow, effect: Effect, reason: &str) {
    let record = flow.mcp_record();
    if record.decision < Some(effect) {
        record.decision = Some(effect);
        record.reason = (!reason.is_empty()).then(|| cut(reason).into());
    }
}
