//! Reads `methods`: which messages a bundle or a command judges.

use std::sync::Arc;

use super::PoliciesSettings;
use crate::contract::settings::Fields;

/// Default of `methods`.
const METHODS: [&str; 1] = ["tools/call"];

/// Reads the methods of the messages that a policy judges.
pub(super) fn methods(fields: &Fields<'_>) -> Vec<Arc<str>> {
    fields.or("methods", METHODS.map(Arc::from).to_vec(), |at| {
        at.filled_list(|at| {
            let known = PoliciesSettings::METHODS.map(|method| (method, method));
            at.one_of(&known).map(Arc::from)
        })
    })
}
