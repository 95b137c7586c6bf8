//! Counts the flows of a container at a running server (`--server`) as they end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::environment::masked_variables;
use super::report::Report;
use crate::cli::client::Client;
use crate::cli::events::Events;
use crate::cli::exit::Failure;

/// The time to wait for the last flows of the stream after the run.
const LAST_FLOWS_WAIT: Duration = Duration::from_millis(300);

/// The stream of a server's flows, which a task reads.
pub struct WatchedFlows {
    report: Arc<Mutex<Report>>,
    reading: JoinHandle<()>,
}

impl WatchedFlows {
    /// Opens the stream and starts the task, which counts the flows of `container`.
    pub async fn open(client: &Client, container: &str) -> Result<Self, Failure> {
        let events = client.flows().await?;
        let report = Arc::new(Mutex::new(Report::new(masked_variables())));
        let reading = tokio::spawn(read(events, container.to_owned(), Arc::clone(&report)));
        Ok(Self { report, reading })
    }

    /// Waits [`LAST_FLOWS_WAIT`] for the last flows and returns the report.
    pub async fn finish(self) -> Report {
        tokio::time::sleep(LAST_FLOWS_WAIT).await;
        self.reading.abort();
        std::mem::take(&mut self.report.lock())
    }
}

async fn read(mut events: Events, container: String, report: Arc<Mutex<Report>>) {
    while let Some(event) = events.next().await {
        let flow: Value = serde_json::from_slice(&event.data).unwrap_or_default();
        if flow.get("container_id").and_then(Value::as_str) == Some(&container) {
            report.lock().add(&flow);
        }
    }
}
