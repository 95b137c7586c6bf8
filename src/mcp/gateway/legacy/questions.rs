//! Requests of servers to the client of a session.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::super::super::error::method_not_found;
use super::super::super::message::{Id, Outcome, write_request};
use super::super::capabilities::can_answer;
use super::line::Line;

/// Sends a request to the client, and its answer to the server when it comes. A server that stops
/// waiting has the request cancelled at the client.
pub async fn ask(
    line: &Line,
    method: &str,
    params: Option<&RawValue>,
    mut reply: oneshot::Sender<Outcome>,
) {
    let capable = line
        .session
        .caller()
        .is_some_and(|caller| can_answer(&caller.capabilities, method));
    if !capable {
        // It fails where the server has gone.
        let _ = reply.send(Err(method_not_found(method)));
        return;
    }
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
        // Without memory for it, the client answers in vain.
        _ = line.stream.push(&cancelled, &line.memory) => {}
        () = session.ended.cancelled() => {}
    }
}
