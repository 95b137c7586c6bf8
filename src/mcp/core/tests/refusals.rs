//! Calls that are refused before the chain judges them.

use prometheus::TextEncoder;
use serde_json::json;
use testkit::each_row_async;

use super::double::Server;
use super::fixture::{Fixture, error};
use crate::mcp::Version;

#[tokio::test]
async fn an_unsent_call_has_its_names_in_its_flow_and_is_counted_if_a_server_may_have_the_tool() {
    let (good, bad) = (
        Server::new(Version::V2025_11_25),
        Server::new(Version::V2025_11_25),
    );
    *bad.is_down.lock() = true;
    let fixture = Fixture::of(&[("good", &good), ("bad", &bad)]);
    let client = fixture.client(Version::V2025_11_25);
    fixture.names(&client, "tools/list").await;
    good.die();
    let long = format!("no_{}", "\u{e9}".repeat(500));
    // A tool of a server that cannot be started again, a tool of a server that never started, and
    // two names that match no server.
    let rows = [
        ("good_echo", Some("good"), "echo", Some("good_echo")),
        ("bad_tool", Some("bad"), "bad_tool", Some("other")),
        ("none", None, "none", None),
        (&long, None, long.get(..255).unwrap(), None),
    ];
    each_row_async(rows, async |(exposed, server, recorded, counted)| {
        let before = executions(&fixture);
        let call = json!({"name": exposed});
        error(fixture.ask(&client, "tools/call", call).await);
        let subject = fixture.judge.subjects.lock().last().cloned().unwrap();
        assert_eq!(
            [&subject[0], &subject[1]].map(Option::as_deref),
            [server, Some(recorded)]
        );
        let after = executions(&fixture);
        let new: Vec<_> = after.iter().filter(|one| !before.contains(one)).collect();
        assert_eq!(new.len(), usize::from(counted.is_some()), "{new:?}");
        if let Some(tool) = counted {
            let expected = format!("tool=\"{tool}\"}} 1");
            assert!(new[0].contains("status=\"unavailable\"") && new[0].ends_with(&expected));
        }
    })
    .await;
}

/// The lines of the metric of tool calls.
fn executions(fixture: &Fixture) -> Vec<String> {
    let text = TextEncoder::new().encode_to_string(&fixture.metrics.gather());
    let name = "proxy_mcp_tool_executions_total{";
    let text = text.unwrap();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.map(str::to_owned).collect()
}
