//! Properties of relayed messages, each with at least 100 cases.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::double::{Server, parsed, raw};
use super::fixture::Fixture;
use crate::mcp::{Caller, ClientRequest, Events, TraceContext, Version};

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i16>().prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        "(?s).{0,12}".prop_map(Value::from),
        "[\\[\\]{}\":,\\\\\r\n ]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let members = prop::collection::btree_map("(?s).{0,6}", inner.clone(), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![
        Just(Version::V2024_11_05),
        Just(Version::V2025_06_18),
        Just(Version::V2025_11_25),
        Just(Version::V2026_07_28),
    ]
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(work)
}

/// An object with `rest` and with numbers, most of which a JSON library would write differently.
fn odd_numbers(rest: &str) -> String {
    format!("{{\"n\": [1.0, 1.50e+10, -0, 12345678901234567890123], \"rest\": {rest} }}")
}

/// A request whose client takes no events.
fn request_of(caller: Arc<Caller>, method: &str, params: Box<RawValue>) -> ClientRequest {
    ClientRequest {
        caller,
        method: method.into(),
        params: Some(params),
        tool: None,
        trace: None,
        events: Events::none(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    // Feature: unified-sidecar, Property 12: Serialization Round-Trip
    #[test]
    fn arguments_and_results_pass_byte_for_byte(
        arguments in json_value(),
        result in json_value(),
        client in version(),
        server in version(),
        unknown in "[a-z]{8}",
    ) {
        run(async {
            let mount = Server::new(server);
            let sent_back = odd_numbers(&result.to_string());
            let answer = format!("{{\"content\":[],\"{unknown}\":{sent_back}}}");
            let text = answer.clone();
            mount.answers(move |_, _| {
                let text = text.clone();
                async move { Ok(RawValue::from_string(text).unwrap()) }
            });
            let fixture = Fixture::of(&[("one", &mount)]);
            let caller = fixture.client(client);
            let written = odd_numbers(&arguments.to_string());
            let params = format!("{{\"name\":\"one_echo\",\"arguments\":{written},\"{unknown}\":1.50}}");
            let params = RawValue::from_string(params).unwrap();
            let request = request_of(caller, "tools/call", params);
            let outcome = Arc::clone(&fixture.core).request(request).await;
            let seen = mount.sent("tools/call");
            let kept = format!("\"arguments\":{written},\"{unknown}\":1.50");
            prop_assert!(seen[0].text.contains(&kept), "{}", seen[0].text);
            let outcome = outcome.unwrap();
            let kept = answer.strip_suffix('}').unwrap();
            prop_assert!(outcome.get().starts_with(kept), "{outcome}");
            if client.era() == server.era() {
                prop_assert_eq!(outcome.get(), answer);
            }
            Ok(())
        })?;
    }

    // Feature: unified-sidecar, Property 11: Trace Context Propagation
    #[test]
    fn the_trace_context_is_propagated_to_the_server(
        trace in any::<[u8; 16]>(),
        span in any::<[u8; 8]>(),
        state in prop::option::of("[a-z]{1,8}=[a-z0-9]{1,16}"),
        in_header: bool,
        client in version(),
        server in version(),
        meta in prop::collection::btree_map("[a-z]{3}\\.example/[a-z]{3}", json_value(), 0..3),
    ) {
        run(async {
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let parent = format!("00-{}-{}-01", hex(&trace), hex(&span));
            let mount = Server::new(server);
            mount.answers(|seen, _| async move { raw(json!({"meta": seen.params["_meta"]})) });
            let fixture = Fixture::sole(&mount);
            let mut own: Map<String, Value> = meta.into_iter().collect();
            let mut header = TraceContext { parent: parent.clone(), state: state.clone() };
            if !in_header {
                // The trace context in `_meta` takes precedence over the one in the header.
                header.parent = format!("00-{}-{}-00", "1".repeat(32), "2".repeat(16));
                header.state = None;
                own.insert("traceparent".to_owned(), json!(parent));
                if let Some(state) = &state {
                    own.insert("tracestate".to_owned(), json!(state));
                }
            }
            let call = to_raw_value(&json!({"name": "echo", "_meta": own})).unwrap();
            let request = ClientRequest {
                trace: Some(header),
                ..request_of(fixture.client(client), "tools/call", call)
            };
            let answer = parsed(&Arc::clone(&fixture.core).request(request).await);
            prop_assert_eq!(&answer["meta"]["traceparent"], &json!(parent));
            let state = state.map(Value::from);
            prop_assert_eq!(answer["meta"].get("tracestate"), state.as_ref());
            for (key, value) in &own {
                prop_assert_eq!(&answer["meta"][key], value, "{}", key);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_text_that_is_no_cursor_of_the_list_is_refused(text in "(?s).{0,12}") {
        run(async {
            let mount = Server::new(Version::V2025_11_25);
            let fixture = Fixture::sole(&mount);
            let caller = fixture.client(Version::V2025_11_25);
            let params = to_raw_value(&json!({"cursor": text})).unwrap();
            let request = request_of(caller, "tools/list", params);
            let outcome = Arc::clone(&fixture.core).request(request).await;
            // The list has one entry, so the only valid cursor is that of index 0. The gateway
            // never issues that cursor.
            prop_assert!(outcome.is_err() || text == "MA", "{text}");
            Ok(())
        })?;
    }
}
