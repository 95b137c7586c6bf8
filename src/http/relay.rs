//! Relays bytes both ways and counts them, for WebSockets and for passthrough hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use addons::contract::{Counters, LiveFlow};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio_util::io::{InspectReader, InspectWriter};

use super::permission::Permission;
use super::session::Session;
use crate::runtime::WakeGated;
use crate::snapshot::Snapshot;

/// Relays until one of these events:
///
/// - Both sides have closed their direction, or one side fails.
/// - The idle timeout passes.
/// - The lease ends.
/// - `shutdown_timeout` has passed since the process began to stop.
/// - A reload or the security level forbids the flow.
///
/// Marks the flow as complete only if both sides have closed their direction.
///
/// The caller must count the flow as under way on the session, since a shutdown ends idle sessions
/// at once.
pub async fn relay<C, U>(
    session: &Session,
    snapshot: &Snapshot,
    live: &mut LiveFlow,
    client: C,
    mut upstream: U,
) where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let idle = Arc::clone(&session.idle);
    let permitted = Permission::of(&live.flow, snapshot);
    // Counts both directions on the client's side and notes the activity.
    let counters = &live.flow.counters;
    let counted = |direction: fn(&Counters) -> &AtomicU64| {
        let (counters, idle) = (Arc::clone(counters), Arc::clone(&idle));
        move |bytes: &[u8]| {
            direction(&counters).fetch_add(bytes.len() as u64, Ordering::Relaxed);
            idle.moved();
        }
    };
    let client = InspectReader::new(client, counted(|counters| &counters.bytes_in));
    let mut client = InspectWriter::new(client, counted(|counters| &counters.bytes_out));
    let ended_elsewhere = WakeGated::new(async {
        tokio::select! {
            () = idle.timed_out(session.timeouts) => {}
            () = session.ended(permitted.as_ref()) => {}
        }
    });
    tokio::select! {
        biased;
        ended = copy_bidirectional(&mut client, &mut upstream) => {
            if ended.is_ok() {
                live.complete();
            }
        }
        () = ended_elsewhere => {}
    }
}
