//! What people approve or set for every container, with the files and reloads of this server.

use std::sync::{Arc, OnceLock, Weak};

use super::reload::Reloader;
use crate::approvals::{Learner, Ledger, LiveGrants};
use crate::config::LearnedFile;
use crate::mcp::policy::PolicyKeeper;
use crate::snapshot::SnapshotStore;

/// Makes the [`Learner`], which writes to the data directory in force.
pub fn learner(
    ledger: &Arc<Ledger>,
    grants: &Arc<LiveGrants>,
    snapshots: &Arc<SnapshotStore>,
    reloader: &Arc<Reloader>,
) -> Arc<Learner> {
    let (snapshots, reloader) = (Arc::clone(snapshots), Arc::clone(reloader));
    let file = move || {
        let snapshot = snapshots.current();
        let proxy = &snapshot.config.proxy;
        let is_on = proxy.approvals.learned;
        is_on.then(|| LearnedFile::of(&proxy.data_dir))
    };
    let reload = move || reloader.reload();
    Learner::new(Arc::clone(ledger), Arc::clone(grants), file, reload)
}

/// Makes the [`PolicyKeeper`]. `later` gets the reloader, which needs the MCP servers, which need the
/// keeper.
pub fn policies(
    ledger: &Arc<Ledger>,
    snapshots: &Arc<SnapshotStore>,
    later: &Arc<OnceLock<Weak<Reloader>>>,
) -> Arc<PolicyKeeper> {
    let later = Arc::clone(later);
    let reload = move || match later.get().and_then(Weak::upgrade) {
        // A mistake in another file does not keep a decision about the policy out of force.
        Some(reloader) => reloader
            .reload()
            .or_else(|_logged| reloader.reload_policies()),
        None => Err(vec!["the server starts or stops".to_owned()]),
    };
    let snapshots = Arc::clone(snapshots);
    PolicyKeeper::new(Arc::clone(ledger), move || snapshots.current(), reload)
}
