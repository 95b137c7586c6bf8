//! Opens the ledger of approvals, and ends its questions with their leases.

use std::io;
use std::path::Path;
use std::sync::Arc;

use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::approvals::sqlite::{FILE_NAME, SqliteApprovals};
use crate::approvals::{Ledger, Record};
use crate::mcp::policy::PolicyKeeper;
use crate::registry::Registry;
use crate::snapshot::Snapshot;

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

/// Expires the questions that the configuration does not ask. Returns at once.
pub fn end_outdated(ledger: &Arc<Ledger>, snapshot: Arc<Snapshot>) {
    let ledger = Arc::clone(ledger);
    tokio::spawn(async move {
        let is_current = move |record: &Record| {
            let (settings, topic) = (&snapshot.config.addons, &record.topic);
            settings.policy.still_asks(topic)
                && settings.mcp.still_asks(topic, &snapshot.call_policies)
                && PolicyKeeper::still_asks(&snapshot, topic)
        };
        // The ledger logs its errors.
        let _ = ledger.end_outdated(is_current).await;
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use addons::contract::{
        ApprovalAnswer, ApprovalOutcome, AuthMode, ContainerId, Level, Question, QuestionKind,
        Source, Topic,
    };

    use super::*;
    use crate::registry::NewRegistration;
    use crate::registry::sqlite::SqliteStore;

    #[tokio::test]
    async fn the_end_of_a_lease_ends_its_questions() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::new(directory.path().join("registry.db"));
        let registry = Registry::open(store, directory.path());
        let ledger = open(directory.path()).unwrap();
        let shutdown = CancellationToken::new();
        let keeping = keep(Arc::clone(&ledger), Arc::clone(&registry), shutdown.clone());
        let keeping = tokio::spawn(keeping);
        let mut open = Vec::new();
        for name in ["c1", "c2"] {
            let id = ContainerId::parse(name).unwrap();
            let new = NewRegistration {
                id: id.clone(),
                source: Source::Listener(id),
                repos: Vec::new(),
                auth_mode: AuthMode::Bot,
                allowed_domains: None,
                expires_at: OffsetDateTime::now_utc() + Duration::from_secs(3600),
            };
            let container = registry.register(new).await.unwrap().container;
            let topic = Topic {
                lease: container.lease,
                container: container.id.clone(),
                kind: QuestionKind::Host,
                server: None,
                subject: "example.com:443".into(),
                rule: None,
                reason: None,
                level: Level::Public,
                revision: "ask".into(),
            };
            let question = Question::new(topic, None).unwrap();
            let answer = ledger.ask(question, Duration::from_secs(3600)).await;
            match answer.unwrap() {
                ApprovalAnswer::Open(id) => open.push(id),
                other => panic!("{other:?}"),
            }
        }
        let ended = ContainerId::parse("c1").unwrap();
        assert!(registry.unregister(ended).await.unwrap());
        let outcome = ledger.wait(open[0]).await.unwrap();
        assert_eq!(outcome, ApprovalOutcome::Ended);
        let other = ledger.get(open[1]).await.unwrap().unwrap();
        assert_eq!(other.closed_at, None);
        shutdown.cancel();
        keeping.await.unwrap();
    }
}
