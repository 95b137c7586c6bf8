//! Sends requests of servers to the client of a session.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::super::super::message::{Id, Outcome, write_request};
use super::line::Line;

/// Sends a request to the client and relays the answer to the server. When the server stops
/// waiting, cancels the request at the client. If too many requests wait for the client or memory
/// is exhausted, drops `reply`, which answers the server with an error.
pub async fn ask(
    line: &Line,
    method: &str,
    params: Option<&RawValue>,
    mut reply: oneshot::Sender<Outcome>,
) {
    let Some((number, answer)) = line.session.ask() else {
        line.metrics.hit("questions");
        return;
    };
    let request = write_request(Some(&Id::number(number)), method, params);
    if line.stream.push(&request, &line.memory).await.is_err() {
        line.session.withdraw(number);
        return;
    }
    let line = line.clone();
    tokio::spawn(async move {
        tokio::select! {
            answered = answer => {
                if let Ok(outcome) = answered {
                    let _ = reply.send(outcome);
                }
            }
            () = reply.closed() => withdraw(&line, number).await,
            () = line.session.ended.cancelled() => {}
        }
    });
}

async fn withdraw(line: &Line, number: u64) {
    if !line.session.withdraw(number) {
        return;
    }
    let params = RawValue::from_string(format!("{{\"requestId\":{number}}}")).ok();
    let cancelled = write_request(None, "notifications/cancelled", params.as_deref());
    let session = Arc::clone(&line.session);
    tokio::select! {
        // If memory is exhausted, the client is not notified, and its answer is dropped.
        _ = line.stream.push(&cancelled, &line.memory) => {}
        () = session.ended.cancelled() => {}
    }
}
