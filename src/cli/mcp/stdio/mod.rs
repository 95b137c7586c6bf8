//! `mcp stdio`: the gateway for agents that support MCP only over stdin and stdout.
//!
//! Each line of stdin is one message, which is sent with a POST. Responses and events of the
//! gateway become lines of stdout. Header fields, sessions and streams of the HTTP transport end
//! here. A message is changed only to give a response the request's id, or to put the message on
//! one line.

mod bridge;
mod lines;
mod mirrored_tools;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use self::bridge::Bridge;
use self::lines::{Output, read_stdin};
use super::endpoint::Endpoint;
use super::http_client::HttpClient;
use crate::cli::exit::Failure;

/// Time limit for requests under way after the end of stdin. Clients send SIGTERM after about 2 s,
/// which ends the wait.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for ending the session at the gateway.
const SESSION_END_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit for writing the last lines to stdout.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Relays messages until stdin ends, stdout is closed, or SIGTERM or SIGINT arrives.
pub async fn run(endpoint: Endpoint) -> Result<(), Failure> {
    let ours = |error| Failure::internal(format_args!("the relay cannot start: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(ours)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ours)?;
    let mut input = read_stdin().map_err(ours)?;
    let (output, mut written) = Output::start().map_err(ours)?;
    let bridge = Bridge::new(HttpClient::new(endpoint), output);
    let relaying = async {
        while let Some(line) = input.recv().await {
            bridge.take(line).await;
        }
        bridge.finish(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        () = relaying => {}
        _ = &mut written => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // If the gateway does not respond, the session ends with the lease.
    let _ = timeout(SESSION_END_TIMEOUT, bridge.end()).await;
    drop(bridge);
    if !written.is_terminated() {
        let _ = timeout(FLUSH_TIMEOUT, written).await;
    }
    Ok(())
}
