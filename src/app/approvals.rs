//! Opens the ledger of approvals, and ends its questions with their leases.

use std::io;
use std::path::Path;
use std::sync::Arc;

use addons::policy::PolicySettings;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::approvals::sqlite::{FILE_NAME, SqliteApprovals};
use crate::approvals::{Ledger, Record};
use crate::registry::Registry;

/// Opens the ledger of a data directory; blocks.
pub fn open(data_dir: &Path) -> io::Result<Arc<Ledger>> {
    let store = SqliteApprovals::new(data_dir.join(FILE_NAME));
    Ledger::open(store, Arc::new(OffsetDateTime::now_utc))
}

/// Until the shutdown, ends the questions and grants of leases that are not in the registry, within
/// a second or two. While the registry is unavailable, no lease counts as ended.
pub async fn keep(ledger: Arc<Ledger>, registry: Arc<Registry>, shutdown: CancellationToken) {
    let live = move || {
        let containers = registry.list().ok()?;
        Some(containers.iter().map(|container| container.lease).collect())
    };
    ledger.run(Arc::new(live), shutdown).await;
}

/// Expires the questions that these settings do not ask. Returns at once.
pub fn end_outdated(ledger: &Arc<Ledger>, settings: PolicySettings) {
    let ledger = Arc::clone(ledger);
    tokio::spawn(async move {
        let is_current = move |record: &Record| settings.still_asks(&record.topic);
        // The ledger logs its errors.
        let _ = ledger.end_outdated(is_current).await;
    });
}
