//! Reads the native form of `mcp.yaml`.

use std::collections::BTreeMap;

use serde_json::json;
use testkit::each_row;

use super::*;
use crate::contract::{Level, Scheme};

#[test]
fn classifications_of_servers_resources_and_prompts_are_read() {
    let settings = read(
        r#"
mcpServers:
  kb:
    url: https://kb.example.com/mcp
    classification: Confidential
    resources: { "kb://hr/*": Secret, "kb://open/*": Public }
    prompts: { review: Secret }
  plain: { url: https://kb.example.com/mcp }
overrides:
  "kb:search": { rename: search }
  "kb:open": { classification: Public }
"#,
    );
    let kb = &settings.servers["kb"];
    assert_eq!(kb.classification, Some(Level::Confidential));
    let secret = |pattern: &str| (pattern.into(), Level::Secret);
    let open = ("kb://open/*".into(), Level::Public);
    assert_eq!(kb.resources, [secret("kb://hr/*"), open]);
    assert_eq!(kb.prompts, [secret("review")]);
    let plain = &settings.servers["plain"];
    assert_eq!((plain.classification, plain.resources.len()), (None, 0));
    let rule = |tool: &str| settings.overrides[&("kb".into(), tool.into())][0].classification;
    assert_eq!(rule("search"), Level::Confidential);
    assert_eq!(rule("open"), Level::Public);
    let errors = read_with(
        "mcpServers:\n  kb:\n    url: https://kb.example.com/mcp\n    classification: secret\n    \
         resources: { \"a*\": high, \"kb://hr files/*\": Secret, \"kb://r\u{e9}sum\u{e9}\": Secret, \"\": Secret }\n    prompts: [a]",
        &[],
    );
    let errors = errors.unwrap_err();
    let places = ["4:21", "5:24", "5:49", "5:72", "5:84", "6:14"];
    assert_eq!(errors.len(), places.len(), "{errors:?}");
    for (error, place) in errors.iter().zip(places) {
        assert!(error.contains(place), "{error}");
    }
}

#[test]
fn a_file_without_servers_mounts_none() {
    assert_eq!(read("version: 1"), McpSettings::default());
}

#[test]
fn the_native_form_is_read() {
    let text = r#"
version: 1
mcpServers:
  weather: { command: uvx, args: [mcp-server-weather], env: { API_KEY: "${WEATHER_KEY}", PORT: 80 }, work_dir: null, timeout: 90s,
             containers: ["agent-*"], hosts: [api.weather.example, "db.example.com:5432"], read: [/usr/share/zoneinfo], write: [/var/cache/weather] }
  kb: { url: "https://KB.example.com:8443/mcp", type: http, headers: { Authorization: "Bearer ${WEATHER_KEY}" }, scope: shared }
overrides:
  "weather:fetch_forecast":
    rename: get_weather
    description: Get the weather for a city
    hide_fields: [station_id, debug_mode]
    defaults: { station_id: "12345", units: metric, days: 3, deep: { a: [1, true, null] }, request_id: "uuid()", at: "now()" }
    annotations: { openWorldHint: false }
    classification: Confidential
policies:
  bundles:
    - { id: mcp-governance, path: /policies/mcp, entrypoint: mcp/authz }
    - { id: elicitation, path: /policies/elicitation, entrypoint: mcp/elicitation, methods: [elicitation/create] }
  evaluator: { kind: rego, timeout: 200ms }
on_definition_change: log
allowed_hosts: ["Gateway.example.com", "unified-proxy:8090"]
"#;
    let (settings, polis, warnings) = read_with(text, &[("WEATHER_KEY", "k-1")]).unwrap();
    assert_eq!((polis, warnings), (PolisSettings::default(), vec![]));
    let weather = &settings.servers["weather"];
    assert_eq!(
        (&*weather.prefix, weather.scope),
        ("weather_", Scope::Container)
    );
    assert_eq!(weather.timeout.as_secs(), 90);
    assert_eq!(weather.containers, ["agent-*".into()]);
    let child = stdio(weather);
    assert_eq!(texts(&child.command), ["uvx", "mcp-server-weather"]);
    let env: Vec<_> = child
        .env
        .iter()
        .map(|(k, v)| (&**k, v.0.as_str()))
        .collect();
    assert_eq!(env, [("API_KEY", "k-1"), ("PORT", "80")]);
    let hosts: Vec<_> = child
        .hosts
        .iter()
        .map(|(host, port)| format!("{host}:{port}"))
        .collect();
    assert_eq!(hosts, ["api.weather.example:443", "db.example.com:5432"]);
    assert_eq!(
        child.write,
        [std::path::PathBuf::from("/var/cache/weather")]
    );
    assert_eq!(
        (&child.work_dir, child.confine, child.unix_sockets),
        (&None, Confine::Namespaces, false)
    );
    let kb = http(&settings.servers["kb"]);
    assert_eq!(
        (kb.endpoint.scheme, kb.endpoint.port),
        (Scheme::Https, 8443)
    );
    assert_eq!(kb.headers[0].0, "authorization");
    assert_eq!(settings.servers["kb"].scope, Scope::Shared);
    let rule = &settings.overrides[&("weather".into(), "fetch_forecast".into())][0];
    assert_eq!(rule.rename.as_deref(), Some("get_weather"));
    assert_eq!(
        (rule.open_world, rule.classification),
        (Some(false), Level::Confidential)
    );
    let defaults: BTreeMap<_, _> = rule
        .defaults
        .iter()
        .map(|(name, value)| (&**name, value))
        .collect();
    assert_eq!(*defaults["station_id"], Injected::Value(json!("12345")));
    assert_eq!(*defaults["days"], Injected::Value(json!(3)));
    assert_eq!(
        *defaults["deep"],
        Injected::Value(json!({"a": [1, true, null]}))
    );
    assert_eq!(
        (defaults["request_id"], defaults["at"]),
        (&Injected::Uuid, &Injected::Now)
    );
    assert_eq!(settings.policies.timeout.as_millis(), 200);
    assert_eq!(settings.policies.bundles[0].methods, ["tools/call".into()]);
    assert_eq!(
        settings.policies.bundles[1].methods,
        ["elicitation/create".into()]
    );
    assert_eq!(settings.on_definition_change, OnChange::Log);
    assert_eq!(
        settings.allowed_hosts,
        ["gateway.example.com".into(), "unified-proxy:8090".into()]
    );
}

#[test]
fn a_command_that_judges_messages_is_read_with_its_limits() {
    let text = r#"version: 1
policies:
  evaluator: { kind: command, command: [python3, policy.py], source: /p/policy.py, memory: 512MB, cpus: 2, timeout: 2s,
               env: { MODE: "${MODE}" }, work_dir: /p, read: [/q], methods: [tools/call, elicitation/create] }
"#;
    let (settings, _, warnings) = read_with(text, &[("MODE", "strict")]).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let policies = settings.policies;
    assert_eq!((policies.bundles.len(), policies.timeout.as_secs()), (0, 2));
    let command = policies.command.unwrap();
    assert_eq!(texts(&command.command), ["python3", "policy.py"]);
    assert_eq!(command.env[0].1.0.as_str(), "strict");
    assert_eq!(texts(&command.expanded), ["strict"]);
    assert_eq!((command.memory, command.cpus), (512 << 20, 2));
    assert_eq!(command.source, Some("/p/policy.py".into()));
    assert_eq!(command.work_dir, Some("/p".into()));
    assert_eq!(command.read, [std::path::PathBuf::from("/q")]);
    assert_eq!(command.methods.len(), 2);

    let text =
        "version: 1\npolicies: { evaluator: { kind: command, command: decide, confine: none } }";
    let (settings, _, warnings) = read_with(text, &[]).unwrap();
    let command = settings.policies.command.unwrap();
    assert_eq!((command.memory, command.cpus), (256 << 20, 1));
    assert_eq!((command.confine, command.source), (Confine::None, None));
    assert_eq!(settings.policies.timeout.as_secs(), 5);
    assert!(
        warnings[0].contains("gives the policy all rights"),
        "{warnings:?}"
    );
}

#[test]
fn a_process_starts_with_the_lease_unless_eager_is_false() {
    each_row(
        [
            ("", true),
            (", eager: true", true),
            (", eager: false", false),
        ],
        |(key, eager)| {
            let text = format!("version: 1\nmcpServers: {{ a: {{ command: x{key} }} }}");
            assert_eq!(stdio(&read(&text).servers["a"]).eager, eager);
        },
    );
}

#[test]
fn only_unix_sockets_true_permits_unix_sockets() {
    each_row(
        [
            ("", false),
            (", unix_sockets: false", false),
            (", unix_sockets: true", true),
        ],
        |(key, permitted)| {
            let text = format!("version: 1\nmcpServers: {{ a: {{ command: x{key} }} }}");
            assert_eq!(stdio(&read(&text).servers["a"]).unix_sockets, permitted);
        },
    );
}
