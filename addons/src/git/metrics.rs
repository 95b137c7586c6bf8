//! Metrics of git operations and denied pushes.

use prometheus::{IntCounterVec, Opts, Registry};

use super::operation::Operation;
use crate::contract::{Code, Outcome};

/// The codes with which pushes are denied most often.
const PUSH_DENIALS: [Code; 10] = [
    Code::RepoNotAuthorized,
    Code::BranchDeletionBlocked,
    Code::BotBranchRestricted,
    Code::PushTooLarge,
    Code::BodyTooLargeToInspect,
    Code::InspectionBusy,
    Code::BodyTimeout,
    Code::UnsupportedEncoding,
    Code::MalformedRequest,
    Code::WriteNotAllowed,
];

/// Counts operations on git hosts, and denied pushes. Made once and kept across reloads.
pub struct GitMetrics {
    operations: IntCounterVec,
    pushes_blocked: IntCounterVec,
}

impl GitMetrics {
    /// Registers the metrics. A series with the value 0 exists from the start for each operation
    /// with each outcome, and for the usual codes of denied pushes.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            prometheus::Result::Ok(counters)
        };
        let metrics = Self {
            operations: counters(
                "proxy_git_operations_total",
                "Requests to repositories on git hosts",
                &["operation", "outcome"],
            )?,
            pushes_blocked: counters(
                "proxy_git_push_blocked_total",
                "Pushes that were denied, by the code of the denial",
                &["reason"],
            )?,
        };
        for operation in Operation::LABELS {
            for outcome in Outcome::LABELS {
                metrics.operations.with_label_values(&[operation, outcome]);
            }
        }
        for code in PUSH_DENIALS {
            metrics.pushes_blocked.with_label_values(&[code.as_str()]);
        }
        Ok(metrics)
    }

    pub(super) fn count(&self, operation: Operation, outcome: &Outcome) {
        let label = outcome.label();
        let labels = [operation.as_str(), label];
        self.operations.with_label_values(&labels).inc();
        if let Some(denial) = &outcome.denial
            && operation.is_push()
            && label == "denied"
        {
            let reason = denial.code().as_str();
            self.pushes_blocked.with_label_values(&[reason]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::TextEncoder;

    use super::*;
    use crate::contract::Denial;

    #[test]
    fn every_operation_has_its_label() {
        use Operation::{Fetch, Lfs, Page, Push, Refs};
        let operations = [Refs { push: false }, Fetch, Push, Lfs, Page].map(Operation::as_str);
        assert_eq!(operations, Operation::LABELS);
    }

    #[test]
    fn git_operations_are_counted_and_denied_pushes_are_counted_by_reason() {
        let registry = Registry::new();
        let metrics = GitMetrics::new(&registry).unwrap();
        let refs = Operation::Refs { push: true };
        for (operation, code) in [
            (Operation::Fetch, None),
            (Operation::Fetch, Some(Code::RepoNotAuthorized)),
            (refs, Some(Code::RepoNotAuthorized)),
            (Operation::Push, Some(Code::BranchDeletionBlocked)),
            (Operation::Push, Some(Code::UpstreamTimeout)),
        ] {
            let outcome = Outcome {
                status: 200,
                denial: code.map(|code| Denial::new(code, "no")),
                aborted: false,
                duration: Duration::from_millis(30),
            };
            metrics.count(operation, &outcome);
        }
        let text = TextEncoder::new().encode_to_string(&registry.gather());
        let text = text.unwrap();
        for line in [
            r#"proxy_git_operations_total{operation="fetch",outcome="ok"} 1"#,
            r#"proxy_git_operations_total{operation="fetch",outcome="denied"} 1"#,
            r#"proxy_git_operations_total{operation="push",outcome="failed"} 1"#,
            r#"proxy_git_push_blocked_total{reason="repo_not_authorized"} 1"#,
            r#"proxy_git_push_blocked_total{reason="branch_deletion_blocked"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains(r#"reason="upstream_timeout""#));
    }
}
