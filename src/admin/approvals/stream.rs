//! The live stream of questions.

use std::convert::Infallible;
use std::sync::Arc;

use addons::contract::ApprovalId;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};

use super::bodies::Approval;
use crate::admin::Api;
use crate::approvals::{Change, Filter, Learner, Ledger, News, Record, Seen};

/// Sends questions that match the filter when they are asked and when their state changes, until the
/// shutdown.
pub(super) fn live(api: &Api, filter: Filter) -> Response {
    let ledger = Arc::clone(&api.state.approvals);
    let shown = (ledger, Arc::clone(&api.state.learner), filter);
    let watched = (shown.0.watch(), shown);
    let events = stream::unfold(watched, async |(mut watch, shown)| {
        loop {
            let seen = watch.next().await?;
            if let Some(event) = event_of(seen, &shown).await {
                return Some((Ok::<_, Infallible>(event), (watch, shown)));
            }
        }
    });
    let until = api.shutdown.clone().cancelled_owned();
    Sse::new(events.take_until(until))
        .keep_alive(KeepAlive::default())
        .into_response()
}

async fn event_of(
    seen: Seen,
    (ledger, learner, filter): &(Arc<Ledger>, Arc<Learner>, Filter),
) -> Option<Event> {
    let Seen::Changed(change) = seen else {
        return Some(missed());
    };
    let Ok(record) = ledger.get(question_of(&change)?).await else {
        return Some(missed());
    };
    let record = record.filter(|record| wants(filter, record))?;
    // Cannot fail: all keys are texts.
    let json = serde_json::to_string(&Approval::of(&record, learner)).unwrap_or_default();
    Some(Event::default().data(json))
}

fn missed() -> Event {
    Event::default().event("missed").data("list again")
}

/// The question whose state changed.
fn question_of(change: &Change) -> Option<ApprovalId> {
    match change.news {
        News::Granted(_) | News::GrantEnded(_) => None,
        _ => change.approval,
    }
}

fn wants(filter: &Filter, record: &Record) -> bool {
    let topic = &record.topic;
    let container = filter.container.as_ref();
    filter.state.is_none_or(|state| state == record.state)
        && filter.kind.is_none_or(|kind| kind == topic.kind)
        && container.is_none_or(|container| *container == topic.container)
}
