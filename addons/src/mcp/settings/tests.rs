use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use testkit::each_row;

use super::*;
use crate::contract::settings::{Document, Report};
use crate::contract::{Level, Scheme};

pub(super) type Warnings = Vec<String>;

/// Reads a text; returns the settings and warnings, or all errors.
pub(super) fn read_with(
    text: &str,
    env: &[(&str, &str)],
) -> Result<(McpSettings, PolisSettings, Warnings), Vec<String>> {
    let report = Report::default();
    let env = |name: &str| {
        let found = env.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let absent = |name| Document::absent(name, &report);
    let files = Files {
        proxy: absent("proxy.yaml"),
        allowlist: absent("allowlist.yaml"),
        policy: absent("policy.yaml"),
        credentials: absent("credentials.yaml"),
        mcp: Document::parse("mcp.yaml", text.as_bytes(), Some(&env), &report),
    };
    let settings = McpSettings::read(&files);
    let polis = PolisSettings::read(&files);
    files.refuse_unknown_keys();
    drop(files);
    match report.finish() {
        Ok(warnings) => Ok((settings, polis, warnings)),
        Err(errors) => Err(errors.to_string().lines().map(str::to_owned).collect()),
    }
}

fn read(text: &str) -> McpSettings {
    read_with(text, &[]).unwrap().0
}

fn stdio(server: &ServerSettings) -> &StdioSettings {
    match &server.kind {
        ServerKind::Stdio(settings) => settings,
        other => panic!("{other:?}"),
    }
}

fn texts(values: &[HiddenValue]) -> Vec<&str> {
    values.iter().map(|value| value.0.as_str()).collect()
}

fn http(server: &ServerSettings) -> &HttpSettings {
    match &server.kind {
        ServerKind::Http(settings) => settings,
        other => panic!("{other:?}"),
    }
}

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
fn json_of_clients_is_read_with_warnings_for_unused_keys() {
    let text = r#"{
  "mcpServers": {
    "files": {"type": "stdio", "command": "npx", "args": ["-y", "server", "/workspace"], "env": {}, "alwaysAllow": ["read"], "alwaysLoad": true, "disabled": false, "timeout": 30},
    "web": {"httpUrl": "http://127.0.0.1:9000/mcp", "trust": true, "timeout": 600000},
    "old": {"type": "sse", "url": "https://old.example.com/sse"},
    "off": {"command": "no", "disabled": true}
  },
  "overrides": {"files:read_file": {"rename": "read"}}
}"#;
    let (settings, _, warnings) = read_with(text, &[]).unwrap();
    let names: Vec<_> = settings.servers.keys().map(|name| &**name).collect();
    assert_eq!(names, ["files", "old", "web"]);
    assert_eq!(settings.servers["files"].timeout.as_secs(), 30);
    assert_eq!(settings.servers["web"].timeout.as_secs(), 600);
    assert_eq!(http(&settings.servers["old"]).transport, HttpTransport::Sse);
    assert_eq!(
        warnings,
        [
            "mcp.yaml:3: alwaysAllow is a setting of MCP clients: the gateway ignores it",
            "mcp.yaml:3: alwaysLoad is a setting of MCP clients: the gateway ignores it",
            "mcp.yaml:4: trust is a setting of MCP clients: the gateway ignores it",
            "mcp.yaml:4: timeout: 600000 is read as milliseconds; write 600000ms",
        ]
    );
}

#[test]
fn polis_files_are_read_with_a_warning_for_each_mapped_key() {
    let text = r#"
version: "1.0"
server: { interceptor_addr: ":8090", mcp_server_addr: "127.0.0.1:8091", shutdown_timeout: 20s }
policies:
  bundles: [{ id: g, path: /policies/mcp, entrypoint: mcp/authz }]
tools:
  - { name: filesystem, command: [npx, -y, server, /workspace], runtime: { type: local }, env: ["A=b=c"], description: Files }
  - { name: data-analyzer, command: [python, analyze.py], runtime: { type: e2b, template: data-science-v1, timeout: 300s } }
metrics: { enabled: true, path: /metrics }
logging: { level: debug, format: text }
secrets: { e2b_api_key: "${E2B_API_KEY:-}" }
"#;
    let (settings, polis, warnings) = read_with(text, &[]).unwrap();
    let listen: Vec<_> = polis.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["0.0.0.0:8090", "127.0.0.1:8091"]);
    assert_eq!(polis.shutdown_timeout.unwrap().as_secs(), 20);
    assert_eq!(
        (polis.log_level.as_deref(), polis.log_json),
        (Some("debug"), Some(false))
    );
    let files = stdio(&settings.servers["filesystem"]);
    assert_eq!(texts(&files.command), ["npx", "-y", "server", "/workspace"]);
    assert_eq!((&*files.env[0].0, files.env[0].1.0.as_str()), ("A", "b=c"));
    let analyzer = &settings.servers["data-analyzer"];
    assert_eq!(analyzer.timeout.as_secs(), 300);
    assert!(
        matches!(&analyzer.kind, ServerKind::E2b(e2b) if e2b.template.as_deref() == Some("data-science-v1"))
    );
    let keys: Vec<_> = warnings
        .iter()
        .map(|warning| warning.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(
        keys,
        [
            "interceptor_addr",
            "mcp_server_addr",
            "shutdown_timeout",
            "logging",
            "metrics",
            "secrets",
            "tools"
        ]
    );
}

#[test]
fn errors_name_their_place() {
    each_row(
        [
            (
                "mcpServers: { \"\": { command: x } }",
                "mcp.yaml:2:15: mcpServers[\"\"]: a server's name must not be empty",
            ),
            (
                "mcpServers: { policy: { command: x } }",
                "mcp.yaml:2:15: mcpServers.policy: policy, and each name that begins with policy_, is reserved for servers of the gateway itself: choose another name",
            ),
            (
                "mcpServers: { a: {} }",
                "mcp.yaml:2:18: mcpServers.a: needs a command, a url, or a coding_sidecar",
            ),
            (
                "mcpServers: { a: { command: x, url: \"https://e.example.com\" } }",
                "mcp.yaml:2:18: mcpServers.a: has more than one of command, url, httpUrl, serverUrl: choose one",
            ),
            (
                "mcpServers: { a: { type: sse, command: x } }",
                "mcp.yaml:2:18: mcpServers.a: its type does not match: stdio needs a command, http and sse need a url",
            ),
            (
                "mcpServers: { a: { command: x, comand: x } }",
                "mcp.yaml:2:32: mcpServers.a.comand: unknown key; did you mean command?",
            ),
            (
                "mcpServers: { a: { command: x, scope: shared, hosts: [e.example.com] } }",
                "mcp.yaml:2:54: mcpServers.a.hosts: a server with scope: shared cannot have hosts, since its traffic would belong to no container: use scope: container, or remove hosts",
            ),
            (
                "mcpServers: { a: { command: x, read: [relative] } }",
                "mcp.yaml:2:39: mcpServers.a.read[0]: must be an absolute path, or one below ~, without ..",
            ),
            (
                "mcpServers: { a: { command: x, write: [\"~/../etc\"] } }",
                "mcp.yaml:2:40: mcpServers.a.write[0]: must be an absolute path, or one below ~, without ..",
            ),
            (
                "mcpServers: { a: { url: \"ftp://e.example.com\" } }",
                "mcp.yaml:2:25: mcpServers.a.url: must be a URL such as https://mcp.example.com/mcp",
            ),
            (
                "mcpServers: { a: { url: \"https://u:p@e.example.com\" } }",
                "mcp.yaml:2:25: mcpServers.a.url: must not contain a user or a password: put them under headers",
            ),
            (
                "mcpServers: { a: { command: x, prefix: \"\" }, b: { command: y } }",
                "mcp.yaml:1:1: mcpServers: a has an empty prefix, which is allowed only for a sole server: remove the prefix",
            ),
            (
                "overrides: { \"a:t\": {} }",
                "mcp.yaml:2:14: overrides[\"a:t\"]: there is no server \"a\" under mcpServers",
            ),
            (
                "mcpServers: { a: { command: x } }\noverrides: { t: {} }",
                "mcp.yaml:3:14: overrides.t: must be server:tool, with the server's own name for the tool",
            ),
            (
                "mcpServers: { a: { command: x } }\noverrides: { \"a:t\": { rename: r }, \"a:u\": { rename: r } }",
                "mcp.yaml:3:43: overrides[\"a:u\"]: a:u and a:t are both renamed to r",
            ),
            (
                "mcpServers: { a: { command: x } }\noverrides: { \"a:t\": { classification: Hidden } }",
                "mcp.yaml:3:39: overrides[\"a:t\"].classification: must be Public, Confidential or Secret",
            ),
            (
                "policies: { bundles: [{ id: a, path: /p }] }",
                "mcp.yaml:2:23: policies.bundles[0].entrypoint: is missing",
            ),
            (
                "policies: { bundles: [{ id: a, path: /p, entrypoint: a.b }] }",
                "mcp.yaml:2:54: policies.bundles[0].entrypoint: must be the path of a package or rule, such as mcp/authz",
            ),
            (
                "policies: { evaluator: { kind: command } }",
                "mcp.yaml:2:24: policies.evaluator.kind: command is not supported by this version: rego is the only kind",
            ),
        ],
        |(text, error)| {
            let errors = read_with(&format!("version: 1\n{text}"), &[]).unwrap_err();
            assert_eq!(errors, [error], "{text}");
        },
    );
}

#[test]
fn two_renames_to_one_name_are_refused_if_a_container_may_match_both() {
    each_row(
        [
            ("", "containers: [web]", true),
            ("containers: [web]", "containers: [web]", true),
            ("containers: [web, db]", "containers: [api, \"d*\"]", true),
            ("containers: [\"web-*\"]", "containers: [\"*-1\"]", true),
            ("containers: [\"*\"]", "containers: [\"web-*\"]", true),
            ("containers: [web]", "containers: [db]", false),
            (
                "containers: [\"web-*\"]",
                "containers: [\"db-*\", web]",
                false,
            ),
            ("containers: [\"*-1\"]", "containers: [\"*-2\"]", false),
        ],
        |(one, other, refused)| {
            let text = format!(
                "mcpServers: {{ a: {{ command: x }} }}\noverrides:\n  \"a:t\": {{ rename: r, {one} }}\n  \"a:u\": {{ rename: r, {other} }}"
            );
            let message = "mcp.yaml:4:10: overrides[\"a:u\"]: a:u and a:t are both renamed to r";
            let expected = if refused {
                vec![message.to_owned()]
            } else {
                Vec::new()
            };
            assert_eq!(
                read_with(&text, &[]).map_or_else(|errors| errors, |_| Vec::new()),
                expected
            );
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

#[test]
fn settings_that_weaken_security_or_have_no_effect_are_warned_about() {
    let text = "version: 1\nmcpServers: { a: { command: x, confine: none } }\npolicies: { on_unavailable: allow }\napprovals: { wait: 50s }";
    assert_eq!(
        read_with(text, &[]).unwrap().2,
        [
            "mcp.yaml:4: approvals has no effect: this version does not implement approval by a person",
            "mcp.yaml:2: confine: none gives the server all rights of the proxy's process",
            "mcp.yaml:3: on_unavailable: allow lets a message pass while its policies cannot be loaded",
        ]
    );
}

#[test]
fn variables_in_a_command_line_and_writable_directories_of_programs_are_warned_about() {
    let warnings = |server: &str| {
        let text = format!("version: 1\nmcpServers:\n  a: {server}\n");
        let (_, _, warnings) = read_with(&text, &[("S", "hunter2"), ("EMPTY", "")]).unwrap();
        assert!(!warnings.iter().any(|warning| warning.contains("hunter2")));
        warnings.len()
    };
    each_row(
        [
            ("{ command: x, args: [\"--key=${S}\"] }", 1),
            ("{ command: [x, \"${S}\"] }", 1),
            (
                "{ command: x, args: [\"${EMPTY}\"], env: { K: \"${S}\" } }",
                0,
            ),
            ("{ command: [x, \"${S}\"], runtime: { type: e2b } }", 0),
            (
                "{ command: x, write: [~/.cache/uv, /var/cache/x, ~/data] }",
                1,
            ),
            ("{ command: x, write: [\"~\"] }", 1),
            (
                "{ command: x, write: [/srv/project/.git, ~/.local/bin] }",
                2,
            ),
            ("{ command: x, read: [~/.cache/uv] }", 0),
        ],
        |(server, expected)| assert_eq!(warnings(server), expected, "{server}"),
    );
}

#[test]
fn debug_output_of_settings_contains_no_secret() {
    let text = r#"
version: 1
mcpServers:
  a: { command: "/${S}", args: ["--key=${S}"], env: { K: "${S}", L: hunter2 } }
  b: { url: "https://b.example.com/?key=${S}", headers: { k: "${S}" } }
  c: { command: [x, "${S}"], runtime: { type: e2b } }
overrides: { "a:t": { defaults: { key: "${S}" } } }
"#;
    let (settings, ..) = read_with(text, &[("S", "hunter2")]).unwrap();
    assert_eq!(settings.servers.len(), 3);
    let debug = format!("{settings:?}");
    assert!(!debug.contains("hunter2"), "{debug}");
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,12}".prop_filter("reserved", |name| names::server_name(name).is_ok())
}

fn words() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[ -~]{1,12}", 1..5)
}

#[test]
fn the_values_expanded_in_the_command_its_arguments_and_env_are_listed() {
    let env = [
        ("A", "of-a-command"),
        ("B", "of-b-args"),
        ("C", "of-c-env"),
        ("D", "no"),
    ];
    let of_clients = "mcpServers: { a: { command: \"${A}\", args: [x, \"--key=${B}\"], env: { K: \"Bearer ${C}\", L: \"${E:-default}\" }, work_dir: \"/${D}\" } }";
    let of_polis = "tools: [{ name: a, command: [\"${A}\", x, \"--key=${B}\"], env: [\"K=Bearer ${C}\", \"L=${E:-default}\"], work_dir: \"/${D}\" }]";
    each_row([of_clients, of_polis], |text| {
        let (settings, ..) = read_with(text, &env).unwrap();
        let expanded = stdio(&settings.servers["a"]).expanded.iter();
        let expanded: Vec<_> = expanded.map(|value| value.0.as_str()).collect();
        assert_eq!(
            expanded,
            ["of-a-command", "of-b-args", "of-c-env", "default"]
        );
    });
}

proptest! {
    // Feature: unified-sidecar, Property 1: Configuration Parsing Consistency
    #[test]
    fn every_server_and_bundle_of_a_valid_file_is_read(
        servers in prop::collection::btree_map(name(), (words(), 1_u64..500), 0..6),
        bundles in prop::collection::btree_map("[a-z]{1,8}", "[a-z]{1,6}(/[a-z]{1,6}){0,2}", 0..5),
    ) {
        let text = json!({
            "version": 1,
            "mcpServers": servers.iter().map(|(name, (command, timeout))| {
                (name.clone(), json!({"command": command, "timeout": format!("{timeout}s")}))
            }).collect::<serde_json::Map<_, _>>(),
            "policies": {"bundles": bundles.iter().map(|(id, entrypoint)| {
                json!({"id": id, "path": format!("/policies/{id}"), "entrypoint": entrypoint})
            }).collect::<Vec<_>>()},
        });
        let escaped = text.to_string().replace("${", "$ {");
        let settings = read_with(&escaped, &[]).unwrap().0;
        prop_assert_eq!(settings.servers.len(), servers.len());
        for (name, (command, timeout)) in &servers {
            let read = &settings.servers[name.as_str()];
            let command: Vec<_> = command.iter().map(|word| word.replace("${", "$ {")).collect();
            prop_assert_eq!(texts(&stdio(read).command), command);
            prop_assert_eq!(read.timeout.as_secs(), *timeout);
        }
        let read: Vec<_> = settings.policies.bundles.iter().map(|b| (&*b.id, &*b.entrypoint)).collect();
        let given: Vec<_> = bundles.iter().map(|(id, entrypoint)| (&**id, &**entrypoint)).collect();
        prop_assert_eq!(read, given);
    }

    // Feature: unified-sidecar, Property 13: Environment Variable Expansion
    #[test]
    fn variables_are_expanded_and_missing_variables_are_named(value in "[ -~]{0,24}", set in any::<bool>()) {
        let text = "version: 1\nmcpServers: { a: { command: x, env: { K: \"${SECRET}\" } } }";
        let env = [("SECRET", value.as_str())];
        match read_with(text, if set { &env } else { &[] }) {
            Ok((settings, _, _)) => {
                prop_assert!(set);
                prop_assert_eq!(stdio(&settings.servers["a"]).env[0].1.0.as_str(), value);
            }
            Err(errors) => {
                prop_assert!(!set);
                prop_assert_eq!(errors.len(), 1);
                prop_assert!(errors[0].starts_with("mcp.yaml:2:42: mcpServers.a.env.K: the variable SECRET is not set"), "{}", errors[0]);
            }
        }
    }

    // Feature: unified-sidecar, Property 14: Secret Redaction in Logs
    #[test]
    fn debug_output_of_a_hidden_value_is_redacted(secret in "[a-zA-Z0-9]{8,40}") {
        let debug = format!("{:?}", HiddenValue(secret.clone().into()));
        prop_assert!(!debug.contains(&secret));
    }

    // Feature: unified-sidecar, Property 16: E2B Runtime Configuration Parsing
    #[test]
    fn template_and_timeout_of_e2b_are_read(template in "[a-z][a-z0-9-]{0,20}", seconds in 1_u64..3600) {
        let text = format!("version: 1\nmcpServers: {{ a: {{ command: [python, a.py], runtime: {{ type: e2b, template: {template:?}, timeout: {seconds}s }} }} }}");
        let settings = read(&text);
        let server = &settings.servers["a"];
        prop_assert_eq!(server.timeout.as_secs(), seconds);
        prop_assert!(matches!(&server.kind, ServerKind::E2b(e2b) if e2b.template.as_deref() == Some(&template)));
    }
}
