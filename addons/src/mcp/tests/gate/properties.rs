//! Generated decisions.

use proptest::prelude::*;

use super::*;
use crate::fixtures::run;

proptest! {
    /// What the callers of the interceptor API get follows from this verdict: a message that passes
    /// unchanged is `pass`, a changed one `modify`, and a denial `block`.
    // Feature: unified-sidecar, Property 3: Policy Decision Mapping
    #[test]
    fn allow_passes_redact_replaces_and_every_other_decision_blocks_with_its_reason(
        effect in prop::sample::select(Effect::ALL.to_vec()),
        reason in "[ -~é]{0,60}",
        arguments in prop::collection::btree_map("[a-z]{1,6}", "[ -~]{0,20}", 0..4),
        modified in prop::collection::btree_map("[a-z]{1,6}", -1000..1000_i64, 0..4),
    ) {
        let (arguments, modified) = (json!(arguments), json!(modified));
        let decided = Decision {
            reason: Some(reason.as_str().into()),
            modified: (effect == Effect::Redact).then(|| raw(modified.to_string())),
            ..decision("a", effect)
        };
        let gate = with_policy(settings(), &["tools/call"], move |_| Ok(vec![decided.clone()]));
        let judged = run(gate.fetch(arguments.clone()));
        match effect {
            Effect::Allow => prop_assert_eq!(judged.unwrap(), arguments),
            Effect::Redact => prop_assert_eq!(judged.unwrap(), modified),
            Effect::DenyContinue | Effect::DenyAbort => {
                let denial = judged.unwrap_err();
                let (code, decision) = match effect {
                    Effect::DenyAbort => (Code::PolicyDenied, "deny_abort"),
                    _ => (Code::PolicyDeniedContinue, "deny_continue"),
                };
                prop_assert_eq!(denial.code(), code);
                prop_assert_eq!(denial.detail("decision"), Some(decision));
                prop_assert_eq!(denial.detail("reason"), Some(reason.as_str()));
            }
            // Without a person's approval, nothing passes: this gate has no ledger of questions.
            Effect::Ask => {
                prop_assert_eq!(code(&judged), Some(Code::RegistryUnavailable));
            }
        }
        prop_assert_eq!(gate.web.is_aborted(), effect == Effect::DenyAbort);
    }
}
