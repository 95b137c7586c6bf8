//! Approvals for every container, with the files and reloads of this server.

use std::sync::Arc;

use super::reload::Reloader;
use crate::approvals::{Learner, Ledger, LiveGrants};
use crate::config::LearnedFile;
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
