//! The metrics of questions.

use super::*;

#[tokio::test]
async fn questions_are_counted_by_kind_and_outcome_with_the_time_that_they_waited() {
    let server = Server::start();
    let before = server.asked(QuestionKind::Host).await;
    let registry = prometheus::Registry::new();
    let metrics = ApprovalMetrics::new(&registry).unwrap();
    let value = |name: &str, labels: &[&str]| {
        let families = registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap();
        let of = family.get_metric().iter().find(|metric| {
            let values = metric.get_label().iter().map(|label| label.value());
            values.eq(labels.iter().copied())
        });
        let of = of.unwrap();
        let histogram = of.get_histogram().get_sample_count() as f64;
        of.get_counter().get_value() + of.get_gauge().get_value() + histogram
    };
    // Every series exists from the start.
    for kind in QuestionKind::ALL {
        assert_eq!(value("proxy_approvals_pending", &[kind.as_str()]), 0.0);
        for outcome in ["approved", "denied", "expired", "ended"] {
            let labels = [kind.as_str(), outcome];
            assert_eq!(value("proxy_approvals_total", &labels), 0.0);
            assert_eq!(value("proxy_approval_wait_seconds", &labels), 0.0);
        }
    }
    let ledger = Arc::clone(&server.approvals);
    tokio::spawn(metrics.follow(ledger, server.shutdown.clone()));
    let reaches = async |name: &str, labels: &[&str], expected: f64| {
        while value(name, labels) != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    reaches("proxy_approvals_pending", &["host"], 1.0).await;
    let tools = [
        server.asked(QuestionKind::Tool).await,
        server.asked(QuestionKind::Tool).await,
    ];
    reaches("proxy_approvals_pending", &["tool"], 2.0).await;
    server.act(before, "deny", json!(null)).await;
    server.act(tools[0], "approve", json!(null)).await;
    server.approvals.end_leases(|_| false).await.unwrap();
    for labels in [["host", "denied"], ["tool", "approved"], ["tool", "ended"]] {
        reaches("proxy_approvals_total", &labels, 1.0).await;
        reaches("proxy_approval_wait_seconds", &labels, 1.0).await;
    }
    for kind in ["host", "tool"] {
        reaches("proxy_approvals_pending", &[kind], 0.0).await;
    }
    assert_eq!(value("proxy_approvals_total", &["tool", "denied"]), 0.0);
}
