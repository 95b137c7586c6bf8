//! An agent of LangChain sees a simplified tool, and the server receives the hidden arguments too.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::clients::{CLIENTS, Found, Transport};
use crate::gateway::Gateway;
use crate::programs::{Server, program};
use crate::support::Origin;
use crate::tools::Tools;

/// A configuration with an override that hides fields and sets defaults. The gateway computes the
/// default of `request_id` for each call.
fn configuration(url: &str) -> Value {
    json!({
        "mcpServers": { "weather": { "type": "http", "url": url } },
        "overrides": {
            "weather:fetch_forecast": {
                "rename": "get_weather",
                "description": "Get the weather for a city",
                "hide_fields": ["station_id", "debug_mode"],
                "defaults": {
                    "station_id": "12345",
                    "units": "metric",
                    "request_id": "uuid()",
                },
            },
        },
    })
}

/// The arguments of the calls that the server received.
fn received(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.map(Result::unwrap).collect()
}

fn call(tools: &Tools, gateway: &Gateway, arguments: &[Value]) -> Found {
    let agent = CLIENTS
        .iter()
        .find(|client| client.name.contains("langchain"));
    let calls = arguments.iter().map(|call| json!(["get_weather", call]));
    let calls = calls.collect();
    agent.unwrap().run(tools, Transport::Http, gateway, &calls)
}

#[test]
fn an_agent_calls_a_simplified_tool_and_the_server_gets_the_hidden_fields() {
    let Some(tools) = Tools::install("overrides for an agent of LangChain") else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("calls");
    let server = Server::start(|address| {
        let mut command = program(&tools.python(1));
        command.arg(tools.path("weather.py"));
        command.arg(address.port().to_string()).arg(&file);
        command
    });
    let origin = Origin::start();
    let gateway = Gateway::start(&origin, &configuration(&server.url("/mcp")));
    let hidden =
        json!({ "city": "Bergen", "station_id": "1", "debug_mode": true, "units": "kelvin" });
    let found = call(&tools, &gateway, &[json!({ "city": "Oslo" }), hidden]);

    let [tool] = &found.tools[..] else {
        panic!(
            "the gateway does not list exactly one tool: {:?}",
            found.tools
        );
    };
    assert_eq!(tool["name"], "get_weather");
    assert_eq!(tool["description"], "Get the weather for a city");
    let properties = tool["schema"]["properties"].as_object().unwrap();
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["city"], "{tool}");
    assert_eq!(tool["schema"]["required"], json!(["city"]));

    assert!(found.results[0].contains("sunny in Oslo"), "{found:?}");
    let mut calls = received(&file);
    let ids = calls.iter_mut().map(|call| call["request_id"].take());
    let ids: Vec<Value> = ids.collect();
    let with = |city: &str| {
        json!({
            "city": city, "station_id": "12345", "request_id": null, "units": "metric",
            "debug_mode": false,
        })
    };
    assert_eq!(calls, [with("Oslo"), with("Bergen")]);
    assert_ne!(ids[0], ids[1]);
    for id in ids {
        let id = id.as_str().unwrap();
        let parts: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{id}");
    }
}
