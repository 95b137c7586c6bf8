//! Limits on the memory that an MCP server over HTTP can take.

use serde_json::json;
use testkit::each_row_async;
use unified_proxy::mcp::{MountError, Version};

use super::server::*;
use super::*;

const LEGACY: Version = Version::V2025_11_25;
const MOST: usize = 64 * 1024;

fn small(url: &str) -> Fixture {
    let settings = format!("url: \"{url}\", timeout: 3s");
    Fixture::with(&settings, 0, |config| {
        config.proxy.limits.inspect_body_bytes = MOST;
        config.proxy.limits.inspect_values = 1000;
    })
}

fn reserved(fixture: &Fixture) -> i64 {
    let families = fixture.metrics.gather();
    let mut families = families.iter();
    let family = families.find(|family| family.name() == "proxy_inspection_memory_bytes");
    family.unwrap().get_metric()[0].get_gauge().get_value() as i64
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_and_its_memory_released() {
    let server = Server::legacy(|seen| {
        let long = vec![b'x'; MOST + 1];
        match seen.message["params"]["name"].as_str().unwrap() {
            "json" => Scripted::typed("application/json", long),
            "endless json" => Scripted::typed("application/json", "").and(Part::Forever(long)),
            "event" => Scripted::events(vec![text("data: "), Part::Send(long), Part::Hold]),
            "endless line" => Scripted::events(vec![Part::Forever(long)]),
            "endless lines" => Scripted::events(vec![Part::Forever(b"data: x\n".repeat(512))]),
            "values" => Scripted::typed("application/json", format!("[{}1]", "1,".repeat(2000))),
            other => panic!("{other}"),
        }
    })
    .await;
    let fixture = small(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    each_row_async(
        [
            ("json", "more than 65536 bytes"),
            ("endless json", "more than 65536 bytes"),
            ("event", "more than 65536 bytes"),
            ("endless line", "more than 65536 bytes"),
            ("endless lines", "more than 65536 bytes"),
            ("values", "more than 1000 values"),
        ],
        async |(name, part)| {
            let (outcome, _) = fixture
                .call(&session, "tools/call", json!({"name": name}))
                .await;
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        },
    )
    .await;
    eventually("no memory is reserved", || reserved(&fixture) == 0).await;
    eventually("the responses are dropped", || server.open() == 0).await;
}

#[tokio::test]
async fn a_flood_of_notifications_is_read_slowly_and_dropped() {
    let note =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}});
    let Part::Send(flood) = event(&note) else {
        panic!("an event is not a Part::Send");
    };
    let server =
        Server::legacy(move |_| Scripted::events(vec![Part::Forever(flood.repeat(100))])).await;
    let fixture = small(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    let (outcome, events) = fixture
        .call(&session, "tools/call", json!({"name": "a"}))
        .await;
    assert!(matches!(outcome, Err(MountError::TimedOut)), "{outcome:?}");
    assert_eq!(events.len(), EVENT_QUEUE);
    let dropped = fixture.dropped("queue_full");
    assert!((500..5000).contains(&dropped), "{dropped} in three seconds");
    eventually("the stream is closed", || server.open() == 0).await;
}

#[tokio::test]
async fn at_most_64_requests_of_a_server_are_queued_and_the_others_are_dropped() {
    let server = Server::legacy(|seen| match seen.method() {
        "tools/call" => {
            let ask = |id| event(&json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"}));
            let mut steps: Vec<_> = (0..200).map(ask).collect();
            steps.push(event(
                &json!({"jsonrpc": "2.0", "id": seen.message["id"], "result": {}}),
            ));
            Scripted::events(steps)
        }
        _ => Scripted::status(202),
    })
    .await;
    let fixture = small(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    let (outcome, events) = fixture
        .call(&session, "tools/call", json!({"name": "a"}))
        .await;
    assert!(outcome.unwrap().is_ok());
    assert_eq!(events.len(), 64);
    assert_eq!(fixture.dropped("queue_full"), 200 - 64);
}

#[tokio::test]
async fn a_compressed_answer_is_decoded_within_the_limit() {
    use std::io::Write as _;
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let server = Server::legacy(move |seen| {
        let id = &seen.message["id"];
        let text = match seen.message["params"]["name"].as_str().unwrap() {
            "small" => json!({"jsonrpc": "2.0", "id": id, "result": {"a": 1}}).to_string(),
            _ => " ".repeat(100 * MOST),
        };
        Scripted::typed("application/json", gzip(text.as_bytes())).with("content-encoding", "gzip")
    })
    .await;
    let fixture = small(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    let result = fixture
        .result(&session, "tools/call", json!({"name": "small"}))
        .await;
    assert_eq!(result, json!({"a": 1}));
    let (outcome, _) = fixture
        .call(&session, "tools/call", json!({"name": "bomb"}))
        .await;
    assert!(
        outcome
            .unwrap_err()
            .to_string()
            .contains("more than 65536 bytes")
    );
}
