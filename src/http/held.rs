//! Requests that are held while a person decides, perhaps longer than the configuration stays the
//! same.

use std::time::Duration;

use addons::contract::{Code, Denial, Level, LiveFlow, Verdict, names};

use super::exchange::Exchange;
use super::permission::Permission;

/// Lets the chain judge the destination of a request in absolute form, and records the permission. If
/// the configuration, the security level or the grant may have changed meanwhile, for example while
/// the request was held for a person, judges the permission once more.
pub async fn judge_destination(exchange: &mut Exchange) -> Verdict {
    let (live, session) = (&mut exchange.live, &exchange.session);
    let container = session.container.as_ref();
    let level = container.map_or(Level::Public, |container| container.level());
    let judging = live.chain.tunnel(&mut live.flow);
    session.idle.held(judging).await?;
    let permission = Permission::of(&live.flow, &exchange.snapshot);
    let permission = permission.map(|permission| Permission {
        level,
        // The chain judges the handshake of a WebSocket afterwards.
        websocket: None,
        ..permission
    });
    // Recorded first: a change from now on makes the connection judge the permission.
    session.latest_permission.lock().clone_from(&permission);
    match permission {
        Some(permission) => session.judge_if_outdated(&permission).await,
        None => Ok(()),
    }
}

/// How long a request was held for a person; `None` if it was not held.
pub fn waited(live: &mut LiveFlow) -> Option<Duration> {
    live.record().approval.as_ref()?.waited
}

/// Denies a request that was held and then judged by rules which are no longer in force. Its approval
/// is for a time, so the repeated request is judged by the new rules.
pub fn in_force(exchange: &mut Exchange) -> Verdict {
    let current = exchange.session.service.snapshot().generation();
    if current == exchange.snapshot.generation() {
        return Ok(());
    }
    let approval = exchange.live.record().approval.as_ref();
    let approval = approval.and_then(|approval| approval.id.clone());
    let sentence = "The configuration changed while the request waited for approval: repeat it";
    let denial = Denial::new(Code::ApprovalPending, sentence).by(names::PROXY);
    Err(denial.with("approval", approval.map(String::from)))
}
