//! MCP servers that flood the proxy or write invalid messages, and the limit on the processes of a
//! lease.

use std::time::Duration;

use serde_json::json;
use unified_proxy::mcp::*;

use super::fixture::*;

fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flooding_server_takes_bounded_memory_and_affects_no_other_server() {
    let fixture = Fixture::new(vec![
        mounted("flood", python("legacy")),
        mounted("t", python("legacy")),
    ]);
    let version = Version::V2025_11_25;
    let other = fixture.session("t", version).await.unwrap();
    for (kind, ends) in [
        ("notifications", false),
        ("noise", true),
        ("line", true),
        ("stderr", false),
    ] {
        let flooding = async {
            loop {
                match fixture.session("flood", version).await {
                    Ok(pooled) => return pooled,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        let pooled = flooding.await;
        let before = memory();
        let flood = fixture.call(&pooled, "flood", json!({ "kind": kind }));
        let limit = Duration::from_secs(if ends { 60 } else { 3 });
        let flooded = tokio::time::timeout(limit, flood).await;
        match flooded {
            Ok(Err(MountError::Protocol(_))) => assert!(ends, "{kind}"),
            Ok(Ok(_)) => assert_eq!(kind, "stderr"),
            Err(_elapsed) => assert!(!ends, "{kind}"),
            other => panic!("{kind}: {other:?}"),
        }
        let grown = memory().saturating_sub(before);
        assert!(grown < 64 << 20, "{kind}: {grown} bytes");
        let echoed = fixture.call(&other, "echo", json!({ "a": 1 }));
        let echoed = tokio::time::timeout(Duration::from_secs(10), echoed).await;
        assert_eq!(echoed.unwrap().unwrap(), json!({ "a": 1 }), "{kind}");
        pooled.session.ended().cancel();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_duplicate_key_fails_only_its_call() {
    let fixture = Fixture::new(vec![mounted("t", python("legacy"))]);
    let pooled = fixture.session("t", Version::V2025_11_25).await.unwrap();
    let spoiled = fixture.call(&pooled, "spoil", json!({})).await;
    assert!(
        matches!(spoiled, Err(MountError::Protocol(_))),
        "{spoiled:?}"
    );
    let echoed = fixture.call(&pooled, "echo", json!({})).await;
    assert_eq!(echoed.unwrap(), json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_a_bounded_number_of_children() {
    let servers = (0..=MAX_CHILDREN_OF_LEASE).map(|number| {
        mounted(
            &format!("s{number}"),
            stdio(&["sh", "-c", super::life::LEGACY_SH]),
        )
    });
    let fixture = Fixture::new(servers.collect());
    for number in 0..MAX_CHILDREN_OF_LEASE {
        let name = format!("s{number}");
        fixture.session(&name, Version::V2025_11_25).await.unwrap();
    }
    let last = format!("s{MAX_CHILDREN_OF_LEASE}");
    let refused = fixture.session(&last, Version::V2025_11_25).await.map(drop);
    assert!(
        matches!(refused, Err(MountError::CannotStart(_))),
        "{refused:?}"
    );
    fixture.mounts.stop(Duration::from_secs(20)).await;
    assert_eq!(descendants(std::process::id()), []);
}

/// A legacy server that exits at the unknown request is started again. The first process may still
/// be counted then.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_place_of_a_lease_suffices_for_a_server_that_is_started_twice() {
    let exits = format!(
        "read -r line; case \"$line\" in *server/discover*) exit 3;; esac\n{}",
        super::life::LEGACY_SH.trim_start_matches("read -r line\n")
    );
    let servers = (0..MAX_CHILDREN_OF_LEASE).map(|number| {
        let script = match number + 1 == MAX_CHILDREN_OF_LEASE {
            true => &exits,
            false => super::life::LEGACY_SH,
        };
        mounted(&format!("s{number}"), stdio(&["sh", "-c", script]))
    });
    let fixture = Fixture::new(servers.collect());
    for number in 0..MAX_CHILDREN_OF_LEASE {
        let is_last = number + 1 == MAX_CHILDREN_OF_LEASE;
        let version = match is_last {
            true => Version::V2026_07_28,
            false => Version::V2025_11_25,
        };
        let opened = fixture.session(&format!("s{number}"), version).await;
        assert!(opened.is_ok(), "{number}: {:?}", opened.map(drop));
    }
    fixture.mounts.stop(Duration::from_secs(20)).await;
    assert_eq!(descendants(std::process::id()), []);
}
