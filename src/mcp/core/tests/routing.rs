//! Routing of messages to servers, and the messages that the chain judges.

use std::sync::atomic::Ordering;
use std::time::Duration;

use addons::contract::Direction;
use serde_json::{Value, json};
use testkit::each_row_async;

use super::double::{Server, notification, parsed, raw, tool};
use super::fixture::{Fixture, error};
use crate::mcp::{Event, Events, Version};

const ERAS: [Version; 2] = [Version::V2025_11_25, Version::V2026_07_28];

#[tokio::test]
async fn a_tool_is_listed_and_called_under_its_exposed_name_in_both_eras() {
    each_row_async(ERAS, async |version| {
        let (one, two) = (Server::new(version), Server::new(version));
        *two.tools.lock() = json!([tool("echo"), tool("add")]);
        let fixture = Fixture::of(&[("one", &one), ("two", &two)]);
        let client = fixture.client(version);
        let names = fixture.names(&client, "tools/list").await;
        assert_eq!(names, ["one_echo", "two_echo", "two_add"]);
        let call = json!({"name": "two_echo", "arguments": {"a": 1}});
        let answer = parsed(&fixture.ask(&client, "tools/call", call).await);
        assert_eq!(answer["seen"]["name"], "echo");
        assert_eq!(answer["seen"]["arguments"], json!({"a": 1}));
        assert!(one.sent("tools/call").is_empty());
        // The chain judged the params that were sent.
        let requests = fixture.judge.requests.lock();
        let (direction, _, judged) = requests.iter().find(|(_, m, _)| m == "tools/call").unwrap();
        assert_eq!(*direction, Direction::ToServer);
        assert_eq!(*judged, two.sent("tools/call")[0].params);
        let responses = fixture.judge.responses.lock();
        assert!(
            responses
                .iter()
                .any(|(_, method, _)| method == "tools/call")
        );
    })
    .await;
}

#[tokio::test]
async fn a_tool_whose_name_apis_of_models_refuse_is_judged_and_called_by_its_own_name() {
    each_row_async(ERAS, async |version| {
        let own = ["files.read", "files/read", "files:read", "files_read"];
        let server = Server::new(version);
        *server.tools.lock() = json!(own.map(tool));
        let fixture = Fixture::of(&[("kb", &server)]);
        let client = fixture.client(version);
        let names = fixture.names(&client, "tools/list").await;
        assert_eq!(names.len(), own.len(), "{names:?}");
        for (exposed, own) in names.iter().zip(own) {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            assert!(exposed.bytes().all(fits), "{exposed}");
            let answer = fixture.ask(&client, "tools/call", json!({"name": exposed}));
            assert_eq!(parsed(&answer.await)["seen"]["name"], own);
        }
        let requests = fixture.judge.requests.lock();
        let calls = requests
            .iter()
            .filter(|(_, method, _)| method == "tools/call");
        let judged: Vec<_> = calls.map(|(_, _, params)| params.clone()).collect();
        let sent: Vec<_> = server
            .sent("tools/call")
            .iter()
            .map(|call| call.params.clone())
            .collect();
        assert_eq!(judged, sent);
    })
    .await;
}

#[tokio::test]
async fn a_name_that_is_not_exposed_is_unknown() {
    let server = Server::new(Version::V2025_11_25);
    let fixture = Fixture::of(&[("one", &server)]);
    let client = fixture.client(Version::V2025_11_25);
    for name in ["echo", "one_ech\u{043e}", "one_", "two_echo"] {
        let outcome = fixture
            .ask(&client, "tools/call", json!({"name": name}))
            .await;
        assert_eq!(error(outcome).code, -32602, "{name}");
    }
    let nameless = fixture.ask(&client, "tools/call", json!({})).await;
    assert_eq!(error(nameless).code, -32602);
    assert!(server.sent("tools/call").is_empty());
}

#[tokio::test]
async fn denied_messages_are_not_relayed_in_either_direction() {
    let server = Server::new(Version::V2025_11_25);
    server.answers(|_, events| async move {
        let log = json!({"level": "info", "data": 1});
        events
            .send(notification("notifications/message", log))
            .await;
        raw(json!({}))
    });
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    let (sender, mut events) = Events::uncharged(8);
    fixture.judge.denied.lock().push("notifications/message");
    let outcome = fixture
        .ask_with(&client, "tools/call", json!({"name": "echo"}), sender)
        .await;
    assert!(outcome.is_ok());
    assert!(
        events.recv().await.is_none(),
        "a denied notification is dropped"
    );
    fixture.judge.denied.lock().push("tools/call");
    let outcome = fixture
        .ask(&client, "tools/call", json!({"name": "echo"}))
        .await;
    assert_eq!(error(outcome).code, -32951);
    assert_eq!(server.sent("tools/call").len(), 1);
    fixture.judge.denied.lock().push("tools/list");
    let outcome = fixture.ask(&client, "tools/list", json!({})).await;
    assert_eq!(error(outcome).code, -32951);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_server_delays_one_list_and_the_tools_of_a_dead_server_stay_listed() {
    let (good, bad) = (
        Server::new(Version::V2025_11_25),
        Server::new(Version::V2025_11_25),
    );
    let fixture = Fixture::of(&[("bad", &bad), ("good", &good)]);
    let client = fixture.client(Version::V2025_11_25);
    *bad.hangs.lock() = true;
    let begun = tokio::time::Instant::now();
    assert_eq!(fixture.names(&client, "tools/list").await, ["good_echo"]);
    let waited = begun.elapsed();
    assert!(waited <= Duration::from_secs(11), "{waited:?}");
    let begun = tokio::time::Instant::now();
    assert_eq!(fixture.names(&client, "tools/list").await, ["good_echo"]);
    assert!(begun.elapsed() < Duration::from_secs(1));
    let call = fixture
        .ask(&client, "tools/call", json!({"name": "good_echo"}))
        .await;
    assert!(call.is_ok());
    assert!(begun.elapsed() < Duration::from_secs(1));
    // The tools of a server that died stay listed; a call fails with status 503.
    good.die();
    assert_eq!(fixture.names(&client, "tools/list").await, ["good_echo"]);
    let call = fixture
        .ask(&client, "tools/call", json!({"name": "good_echo"}))
        .await;
    let data = error(call).data.unwrap();
    let data: Value = serde_json::from_str(data.get()).unwrap();
    assert_eq!(data["status"], 503);
}

#[tokio::test]
async fn resources_are_routed_to_the_server_that_listed_or_linked_them() {
    let (one, two) = (
        Server::new(Version::V2025_11_25),
        Server::new(Version::V2025_11_25),
    );
    *one.resources.lock() = json!([{"uri": "a://1", "name": "a"}, {"uri": "c://1", "name": "c"}]);
    *two.resources.lock() = json!([{"uri": "b://1", "name": "b"}, {"uri": "c://1", "name": "c"}]);
    *two.templates.lock() = json!([{"uriTemplate": "t://{id}", "name": "t"}]);
    two.answers(|seen, _| async move {
        match &*seen.method {
            "tools/call" => raw(json!({"content": [{"type": "resource_link", "uri": "x://9"}]})),
            _ => raw(json!({"by": "two"})),
        }
    });
    one.answers(|_, _| async { raw(json!({"by": "one"})) });
    let fixture = Fixture::of(&[("one", &one), ("two", &two)]);
    let client = fixture.client(Version::V2025_11_25);
    let listed = fixture.names(&client, "resources/list").await;
    assert_eq!(listed, ["a://1", "c://1", "b://1"]);
    let call = fixture
        .ask(&client, "tools/call", json!({"name": "two_echo"}))
        .await;
    assert!(call.is_ok());
    for (uri, owner) in [
        ("a://1", "one"),
        ("b://1", "two"),
        ("c://1", "one"),
        ("t://5", "two"),
        ("x://9", "two"),
    ] {
        let read = fixture
            .done(&client, "resources/read", json!({"uri": uri}))
            .await;
        assert_eq!(read["by"], owner, "{uri}");
    }
    let reference = json!({"ref": {"type": "ref/resource", "uri": "t://{id}"}, "argument": {"name": "id", "value": ""}});
    let completed = parsed(&fixture.ask(&client, "completion/complete", reference).await);
    assert_eq!(completed["by"], "two");
}

#[tokio::test]
async fn a_denial_ends_the_search_for_the_owner_of_a_resource() {
    let (one, two) = (
        Server::new(Version::V2025_11_25),
        Server::new(Version::V2025_11_25),
    );
    for server in [&one, &two] {
        server.answers(|_, _| async {
            Err(crate::mcp::error::protocol_error(
                -32002,
                "Resource not found",
            ))
        });
    }
    let fixture = Fixture::of(&[("one", &one), ("two", &two)]);
    let client = fixture.client(Version::V2025_11_25);
    let read = async || {
        let params = json!({"uri": "u://unlisted"});
        error(fixture.ask(&client, "resources/read", params).await).code
    };
    assert_eq!(read().await, -32002);
    assert_eq!(two.sent("resources/read").len(), 1);
    *fixture.judge.denied_once.lock() = Some("resources/read");
    assert_eq!(read().await, -32951);
    for server in [&one, &two] {
        assert_eq!(server.sent("resources/read").len(), 1);
    }
}

#[tokio::test]
async fn prompts_and_their_completions_are_routed_by_prefix() {
    let (one, two) = (
        Server::new(Version::V2025_11_25),
        Server::new(Version::V2025_11_25),
    );
    *one.prompts.lock() = json!([{"name": "review"}]);
    *two.prompts.lock() = json!([{"name": "review"}]);
    let fixture = Fixture::of(&[("one", &one), ("two", &two)]);
    let client = fixture.client(Version::V2025_11_25);
    let names = fixture.names(&client, "prompts/list").await;
    assert_eq!(names, ["one_review", "two_review"]);
    let got = fixture
        .done(&client, "prompts/get", json!({"name": "two_review"}))
        .await;
    assert_eq!(got["seen"]["name"], "review");
    let complete =
        json!({"ref": {"type": "ref/prompt", "name": "two_review", "x": 1.0}, "argument": {}});
    let done = parsed(&fixture.ask(&client, "completion/complete", complete).await);
    assert_eq!(
        done["seen"]["ref"],
        json!({"type": "ref/prompt", "name": "review", "x": 1.0})
    );
    assert!(one.sent("prompts/get").is_empty() && one.sent("completion/complete").is_empty());
    let unknown = fixture
        .ask(&client, "prompts/get", json!({"name": "review"}))
        .await;
    assert_eq!(error(unknown).code, -32602);
}

#[tokio::test]
async fn methods_of_extensions_reach_only_a_sole_server_that_declares_extensions() {
    let server = Server::new(Version::V2025_11_25);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    let refused = fixture.ask(&client, "x.example/do", json!({})).await;
    assert_eq!(error(refused).code, -32601);
    server.capabilities.lock()["experimental"] = json!({"x.example": {}});
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    fixture.done(&client, "x.example/do", json!({"a": 1})).await;
    for method in [
        "tasks/get",
        "tasks/result",
        "initialize",
        "ping",
        "server/discover",
        "tools/x",
    ] {
        let refused = fixture.ask(&client, method, json!({})).await;
        assert_eq!(error(refused).code, -32601, "{method}");
    }
    let fixture = Fixture::of(&[("one", &server)]);
    let client = fixture.client(Version::V2025_11_25);
    let refused = fixture.ask(&client, "x.example/do", json!({})).await;
    assert_eq!(error(refused).code, -32601);
}

#[tokio::test]
async fn progress_has_the_clients_token_and_progress_with_other_tokens_is_dropped() {
    each_row_async(ERAS, async |version| {
        let server = Server::new(version);
        server.answers(|seen, events| async move {
            let token = seen.params["_meta"]["progressToken"].clone();
            for token in [json!("tok"), token.clone(), json!(0)] {
                let params = json!({"progressToken": token, "progress": 1.0});
                events
                    .send(notification("notifications/progress", params))
                    .await;
            }
            raw(json!({"token": token}))
        });
        let fixture = Fixture::sole(&server);
        let client = fixture.client(version);
        let (sender, mut events) = Events::uncharged(8);
        let call = json!({"name": "echo", "_meta": {"progressToken": "tok"}});
        let answer = parsed(&fixture.ask_with(&client, "tools/call", call, sender).await);
        assert!(
            answer["token"].is_u64(),
            "the server gets the gateway's token"
        );
        let Some(Event::Notification { params, .. }) = events.recv().await else {
            panic!("no progress");
        };
        assert_eq!(
            params.unwrap().get(),
            r#"{"progressToken":"tok","progress":1.0}"#
        );
        assert!(events.recv().await.is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn progress_extends_the_timeout_of_a_call_within_a_bound() {
    let server = Server::new(Version::V2025_11_25);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    server.answers(|_, _| std::future::pending());
    let begun = tokio::time::Instant::now();
    let outcome = fixture
        .ask(&client, "tools/call", json!({"name": "echo"}))
        .await;
    let data = error(outcome).data.unwrap();
    assert!(data.get().contains("\"status\":504"), "{data}");
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(20) && waited < Duration::from_secs(22),
        "{waited:?}"
    );
    assert_eq!(server.cancelled.load(Ordering::SeqCst), 1);
    server.answers(|seen, events| async move {
        let token = seen.params["_meta"]["progressToken"].clone();
        loop {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let params = json!({"progressToken": token, "progress": 1});
            let _ = events.try_send(notification("notifications/progress", params));
        }
    });
    let begun = tokio::time::Instant::now();
    let call = json!({"name": "echo", "_meta": {"progressToken": 1}});
    let outcome = fixture.ask(&client, "tools/call", call).await;
    assert!(outcome.is_err());
    let waited = begun.elapsed();
    assert!(
        waited > Duration::from_secs(60) && waited <= Duration::from_secs(901),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_times_out_although_its_server_sends_without_pause() {
    let server = Server::new(Version::V2025_11_25);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    fixture.names(&client, "tools/list").await;
    server.answers(|_, events| async move {
        loop {
            let _ = events.try_send(notification("notifications/message", json!({})));
            tokio::task::consume_budget().await;
        }
    });
    // The paused clock does not advance automatically while the server keeps the runtime busy.
    let call = fixture.ask(&client, "tools/call", json!({"name": "echo"}));
    let (outcome, ()) = tokio::join!(call, tokio::time::advance(Duration::from_secs(21)));
    let data = error(outcome).data.unwrap();
    assert!(data.get().contains("\"status\":504"), "{data}");
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server_and_counts_as_aborted() {
    let server = Server::new(Version::V2025_11_25);
    server.answers(|_, _| std::future::pending());
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    fixture.names(&client, "tools/list").await;
    let call = fixture.ask(&client, "tools/call", json!({"name": "echo"}));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), call)
            .await
            .is_err()
    );
    assert_eq!(server.cancelled.load(Ordering::SeqCst), 1);
    let ended = fixture.judge.ended.lock();
    assert!(
        ended
            .iter()
            .any(|(method, aborted, _)| method == "tools/call" && *aborted)
    );
}

#[tokio::test]
async fn messages_under_way_are_bounded_for_each_lease() {
    let server = Server::new(Version::V2025_11_25);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    fixture.names(&client, "tools/list").await;
    let lease = super::super::lease::Lease::of(&fixture.container);
    let held: Vec<_> = (0..super::super::MAX_CALLS_PER_LEASE)
        .map(|_| lease.begin().unwrap())
        .collect();
    let refused = fixture.ask(&client, "tools/list", json!({})).await;
    let data = error(refused).data.unwrap();
    assert!(data.get().contains("\"status\":429"), "{data}");
    drop(held);
    fixture.done(&client, "tools/list", json!({})).await;
}

#[tokio::test]
async fn a_long_list_comes_in_pages_that_join_to_the_whole() {
    let server = Server::new(Version::V2025_11_25);
    let text = "x".repeat(100_000);
    let tools: Vec<_> = (0..60)
        .map(|n| json!({"name": format!("t{n}"), "description": text, "inputSchema": {}}))
        .collect();
    *server.tools.lock() = json!(tools);
    let fixture = Fixture::sole(&server);
    let client = fixture.client(Version::V2025_11_25);
    let (mut names, mut pages, mut params) = (Vec::new(), 0, json!({}));
    loop {
        let page = parsed(&fixture.ask(&client, "tools/list", params).await);
        pages += 1;
        names.extend(
            page["tools"]
                .as_array()
                .unwrap()
                .iter()
                .map(|tool| tool["name"].clone()),
        );
        match page.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    assert!(pages > 1);
    assert_eq!(
        names,
        (0..60).map(|n| json!(format!("t{n}"))).collect::<Vec<_>>()
    );
    for cursor in [json!("?"), json!("OTk5"), json!(1)] {
        let refused = fixture
            .ask(&client, "tools/list", json!({"cursor": cursor}))
            .await;
        assert_eq!(error(refused).code, -32602, "{cursor}");
    }
}

#[tokio::test]
async fn the_gateways_capabilities_are_the_union_of_the_servers_without_their_tasks() {
    let (one, two) = (
        Server::new(Version::V2025_11_25),
        Server::new(Version::V2025_11_25),
    );
    *one.capabilities.lock() = json!({"tools": {}, "experimental": {"a": {}}});
    *two.capabilities.lock() = json!({"resources": {"subscribe": true}, "logging": {}});
    let fixture = Fixture::of(&[("one", &one), ("two", &two)]);
    let client = fixture.client(Version::V2025_11_25);
    let described = fixture.core.describe(&client).await;
    let capabilities: Value = serde_json::from_str(described.capabilities.get()).unwrap();
    let expected = json!({
        "logging": {}, "resources": {"subscribe": true, "listChanged": true},
        "tools": {"listChanged": true},
    });
    assert_eq!(capabilities, expected);
    assert_eq!(
        described.instructions.unwrap(),
        "one:\n  Be kind.\n\ntwo:\n  Be kind."
    );
    *one.capabilities.lock() =
        json!({"extensions": {"io.modelcontextprotocol/tasks": {}, "x.example/y": {"z": 1}}});
    let fixture = Fixture::sole(&one);
    let client = fixture.client(Version::V2026_07_28);
    let described = fixture.core.describe(&client).await;
    let capabilities: Value = serde_json::from_str(described.capabilities.get()).unwrap();
    assert_eq!(
        capabilities,
        json!({"extensions": {"x.example/y": {"z": 1}, "io.modelcontextprotocol/tasks": {}}}),
        "the gateway's own tasks"
    );
    assert_eq!(described.instructions.unwrap(), "Be kind.");
}

#[tokio::test]
async fn only_clients_with_equal_capabilities_share_a_session() {
    let server = Server::new(Version::V2025_11_25);
    let fixture = Fixture::sole(&server);
    let (one, two) = (
        fixture.client(Version::V2025_11_25),
        fixture.client(Version::V2025_11_25),
    );
    for client in [&one, &two, &one] {
        fixture
            .done(client, "tools/call", json!({"name": "echo"}))
            .await;
    }
    assert_eq!(server.opened.load(Ordering::SeqCst), 1);
    let plain = fixture.client_with(Version::V2025_11_25, json!({}), "plain");
    fixture
        .done(&plain, "tools/call", json!({"name": "echo"}))
        .await;
    assert_eq!(server.opened.load(Ordering::SeqCst), 2);
}
