//! Tests with the files in which MCP clients keep their servers.

use testkit::each_row;

use super::tests::read_with;
use super::*;

const ENV: [(&str, &str); 3] = [
    ("BRAVE_API_KEY", "b-1"),
    ("GITHUB_TOKEN", "g-1"),
    ("EXTERNAL_API_KEY", "e-1"),
];

fn read(text: &str) -> (McpSettings, Vec<String>) {
    let (settings, _, warnings) = read_with(text, &ENV).unwrap();
    (settings, warnings)
}

#[test]
fn the_files_of_clients_are_read() {
    each_row(
        [
            (
                include_str!("examples/claude-desktop.json"),
                &["MCP_DOCKER", "brave-search", "filesystem"][..],
                &["globalShortcut", "preferences"][..],
            ),
            (
                include_str!("examples/cursor.json"),
                &["Design-Tool", "GitHub", "brave_search"],
                &["envFile", "\"Design Tool\"", "auth"],
            ),
            (
                include_str!("examples/vscode.json"),
                &["github", "playwright"],
                &["inputs", "dev", "envFile", "gallery", "version"],
            ),
            (
                include_str!("examples/cline.json"),
                &[
                    "github-com-modelcontextprotocol-servers-98396fc8",
                    "linear_remote",
                ],
                &[
                    "\"github.com/",
                    "autoApprove",
                    "transportType",
                    "alwaysAllow",
                ],
            ),
            (
                include_str!("examples/gemini.json"),
                &["googleCloudServer", "httpServerWithAuth", "pythonTools"],
                &[
                    "15000",
                    "write ${NAME}",
                    "excludeTools",
                    "includeTools",
                    "trust",
                    "5000",
                    "authProviderType",
                    "oauth",
                    "targetAudience",
                    "targetServiceAccount",
                ],
            ),
            (
                include_str!("examples/codex.json"),
                &["chrome_devtools", "context7", "figma"],
                &[
                    "startup_timeout_sec",
                    "env_vars",
                    "scopes",
                    "tool_timeout_sec",
                    "required",
                    "bearer_token_env_var",
                    "env_http_headers",
                    "default_tools_approval_mode",
                    "disabled_tools",
                    "enabled_tools",
                    "supports_parallel_tool_calls",
                ],
            ),
        ],
        |(text, servers, warned)| {
            let (settings, warnings) = read(text);
            let names: Vec<_> = settings.servers.keys().map(|name| &**name).collect();
            assert_eq!(names, servers);
            assert_eq!(warnings.len(), warned.len(), "{warnings:#?}");
            for (warning, word) in warnings.iter().zip(warned) {
                assert!(warning.contains(word), "{word}: {warnings:#?}");
            }
        },
    );
}

#[test]
fn variables_and_headers_of_clients_have_their_values() {
    let (cursor, _) = read(include_str!("examples/cursor.json"));
    let ServerKind::Stdio(brave) = &cursor.servers["brave_search"].kind else {
        panic!("{cursor:?}")
    };
    assert_eq!(brave.env[0].1.0.as_str(), "b-1");
    assert_eq!(brave.expanded[0].0.as_str(), "b-1");
    let (codex, _) = read(include_str!("examples/codex.json"));
    for (settings, server, name, value) in [
        (&cursor, "GitHub", "authorization", "Bearer g-1"),
        (&codex, "figma", "x-figma-region", "us-east-1"),
    ] {
        let ServerKind::Http(http) = &settings.servers[server].kind else {
            panic!("{settings:?}")
        };
        let headers: Vec<_> = http
            .headers
            .iter()
            .map(|(k, v)| (&**k, v.0.as_str()))
            .collect();
        assert_eq!(headers, [(name, value)]);
    }
}

#[test]
fn errors_in_json_with_comments_name_their_place() {
    let text = "// servers\n{\n\t\"mcpServers\": { /* one */ \"a\": { \"comand\": \"x\" }, },\n}";
    let errors = read_with(text, &[]).unwrap_err();
    let places: Vec<_> = errors.iter().map(|error| &error[..14]).collect();
    assert_eq!(places, ["mcp.yaml:3:33:", "mcp.yaml:3:35:"], "{errors:?}");
}

#[test]
fn an_override_is_of_a_server_by_its_own_name_or_as_written() {
    each_row(["My Server", "My-Server"], |name| {
        let text = format!(
            "mcpServers: {{ My Server: {{ command: x }} }}\noverrides: {{ \"{name}:t\": {{ rename: r }} }}"
        );
        let (settings, _) = read(&text);
        let key = ("My-Server".into(), "t".into());
        assert_eq!(settings.overrides[&key][0].rename.as_deref(), Some("r"));
    });
    let both = "mcpServers: { My Server: { command: x } }\noverrides: { \"My Server:t\": {}, \"My-Server:t\": {} }";
    let errors = read_with(both, &[]).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].contains("there is another entry for t of My-Server"),
        "{errors:?}"
    );
}

#[test]
fn servers_whose_tools_could_not_be_distinguished_are_refused() {
    each_row(
        [
            "mcpServers: { kb: { command: x }, KB: { command: x } }",
            "mcpServers: { kb_docs: { command: x }, kb: { command: x } }",
            "mcpServers: { a b: { command: x }, a/b: { command: x } }",
            "mcpServers: { kb: { command: x } }\nservers: { kb: { command: y } }",
            "mcpServers: { kb: { command: x } }\ntools: [{ name: Kb, command: [y] }]",
        ],
        |text| {
            let errors = read_with(text, &[]).unwrap_err();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("could not distinguish"), "{errors:?}");
        },
    );
    let names = ["kb", "kb-docs", "kbs", "docs_kb", "docs_web"];
    let servers = names
        .map(|name| format!("{name}: {{ command: x }}"))
        .join(", ");
    assert_eq!(
        read(&format!("mcpServers: {{ {servers} }}"))
            .0
            .servers
            .len(),
        5
    );
}

#[test]
fn a_misplaced_key_of_a_coding_sidecar_is_refused() {
    each_row(["auth: { token: t }", "required: true"], |key| {
        let text =
            format!("mcpServers: {{ a: {{ coding_sidecar: {{ socketPath: /s }}, {key} }} }}");
        assert_eq!(read_with(&text, &[]).unwrap_err().len(), 1, "{key}");
    });
}

#[test]
fn a_value_with_a_dollar_sign_is_warned_about_only_if_it_looks_like_a_variable() {
    each_row(
        [
            ("$TOKEN", 1),
            ("$a_1", 1),
            ("$", 0),
            ("$a-b", 0),
            ("x$TOKEN", 0),
            ("${env:GITHUB_TOKEN}", 0),
        ],
        |(value, expected)| {
            let text = format!("mcpServers: {{ a: {{ command: x, env: {{ K: \"{value}\" }} }} }}");
            assert_eq!(read(&text).1.len(), expected, "{value}");
        },
    );
}
