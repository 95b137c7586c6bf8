//! Approves questions about the definitions of tools, which are accepted for everyone.

use std::sync::Arc;

use addons::contract::{ApprovalId, QuestionKind};

use crate::admin::{Api, ControlPlane, NamedTool};
use crate::approvals::{Decision, Filter, Record, Refused, State, StoreError};
use crate::mcp::AcceptError;

/// Accepts the definition that an open question shows, and approves the question.
pub(super) async fn approve(
    api: &Api,
    id: ApprovalId,
    decision: &Decision,
) -> Result<Record, Refused> {
    let control = Arc::clone(&api.state.control);
    let accept = move |record: &Record| accept(&*control, record);
    let ledger = &api.state.approvals;
    ledger
        .approve_definition(id, decision.clone(), accept)
        .await
}

/// Approves all open questions about an accepted definition. `digest` is that of the definition.
pub(super) async fn approve_equal(
    api: &Api,
    tool: &NamedTool,
    digest: &str,
    decision: &Decision,
) -> Result<Vec<Record>, StoreError> {
    let ledger = &api.state.approvals;
    let mut filter = Filter {
        state: Some(State::Pending),
        kind: Some(QuestionKind::Definition),
        ..Filter::default()
    };
    let mut approved = Vec::new();
    loop {
        let page = ledger.list(filter.clone()).await?;
        let Some(last) = page.last() else {
            return Ok(approved);
        };
        filter.before = Some(last.id);
        let is_equal = |record: &&Record| {
            named(record).is_some_and(|named| named == *tool) && *record.topic.revision == *digest
        };
        for record in page.iter().filter(is_equal) {
            let approving = ledger.approve_definition(record.id, decision.clone(), |_| Ok(()));
            match approving.await {
                Ok(record) => approved.push(record),
                Err(Refused::Store(error)) => return Err(error),
                // Somebody was faster, or the question is over.
                Err(_) => {}
            }
        }
    }
}

/// Accepts the definition of a question; does nothing if it is accepted already. Blocks.
fn accept(control: &dyn ControlPlane, record: &Record) -> Result<(), String> {
    let named = || named(record).ok_or_else(|| "the question names no server".to_owned());
    let digest = record.topic.revision.to_string();
    let error = match control.accept_definition(named()?, Some(digest.clone())) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if let AcceptError::Unchanged { .. } = error
        && control
            .definition(named()?)
            .is_ok_and(|digests| digests.accepted == digest)
    {
        return Ok(());
    }
    Err(error.to_string())
}

/// The tool that a question is about.
pub(super) fn named(record: &Record) -> Option<NamedTool> {
    Some(NamedTool {
        server: record.topic.server.as_deref()?.to_owned(),
        tool: record.topic.subject.to_string(),
    })
}
