use testkit::each_row;

use super::*;
use crate::contract::ContainerId;

const BUNDLE: &str = "bundles: [{ id: main, path: /p, entrypoint: mcp/authz }]";

#[test]
fn the_listed_servers_are_mounted_for_every_container_and_the_approver_for_none() {
    let text = format!(
        "version: 1\npolicies: {{ servers: [loop, policy_approver, policy_reader, policy_proposer], expose_decide: true, editable: main, {BUNDLE} }}"
    );
    let settings = read(&text);
    let names: Vec<_> = settings.servers.keys().map(|name| &**name).collect();
    assert_eq!(names, ["loop", "policy_proposer", "policy_reader"]);
    for (name, server) in &settings.servers {
        assert_eq!(*server.prefix, format!("{name}_"));
        assert_eq!(server.containers, ["*".into()]);
        assert!(server.may_say_closed_world());
        assert!(server.timeout > settings.waits.of(None));
    }
    let container = ContainerId::parse("c1").unwrap();
    let is_closed = |server: &str| settings.is_closed_world(&server.into(), &container, &[]);
    assert!(is_closed("policy_reader") && !is_closed("other"));
    let reader = PolicyServer::Reader { decides: true };
    assert_eq!(
        settings.servers["policy_reader"].kind,
        ServerKind::Policy(reader)
    );
    assert!(settings.policies.servers.contains(&PolicyServer::Approver));
    assert_eq!(settings.policies.editable.as_deref(), Some("main"));
    assert!(read("mcpServers: {}").servers.is_empty());
    assert!(!read("policies: {}").policies.shows_text());
}

#[test]
fn an_override_may_change_the_tool_of_a_policy_server() {
    let text = "version: 1\npolicies: { servers: [loop] }\noverrides: { \"loop:yield_turn\": { rename: wait } }";
    let (server, tool) = ("loop".into(), "yield_turn".into());
    assert!(read(text).overrides.contains_key(&(server, tool)));
}

#[test]
fn wrong_settings_of_policy_servers_and_tokens_are_errors_with_their_place() {
    each_row(
        [
            (
                "policies: { servers: [policy_writer] }",
                "mcp.yaml:2:23: policies.servers[0]: ",
            ),
            (
                "policies: { servers: [loop, loop] }",
                "mcp.yaml:2:29: policies.servers[1]: the list has this server already",
            ),
            (
                "policies: { editable: other, bundles: [{ id: main, path: /p, entrypoint: mcp/authz }] }",
                "mcp.yaml:2:23: policies.editable: must be the id of a bundle under policies.bundles",
            ),
            (
                "policies: { expose_decide: maybe }",
                "mcp.yaml:2:28: policies.expose_decide: ",
            ),
            (
                "policies: { servers: [loop] }\nmcpServers: { a: { command: x, prefix: \"\" } }",
                "mcp.yaml:1:1: mcpServers: a has an empty prefix",
            ),
            (
                "policies: { servers: [loop] }\nmcpServers: { loop: { command: x } }",
                "mcp.yaml:3:15: mcpServers.loop: loop, and each name that begins with loop_, is reserved",
            ),
            (
                "mcpServers: { Policy_Reader: { command: x } }",
                "mcp.yaml:2:15: mcpServers.Policy_Reader: policy, and each name",
            ),
            (
                "tokens: { human_jwt: { issuer: i, audience: a } }",
                "mcp.yaml:2:22: tokens.human_jwt.jwks_file: ",
            ),
            (
                "tokens: { human_jwt: { jwks_file: f, issuer: \"\", audience: a } }",
                "mcp.yaml:2:46: tokens.human_jwt.issuer: ",
            ),
            (
                "tokens: { human_jwt: { jwks_file: f, issuer: i, audience: a, algorithm: none } }",
                "mcp.yaml:2:62: tokens.human_jwt.algorithm: unknown key",
            ),
        ],
        |(text, error)| {
            let errors = read_with(&format!("version: 1\n{text}"), &[]).unwrap_err();
            let is_found = errors.iter().any(|found| found.starts_with(error));
            assert!(is_found, "{errors:?}");
        },
    );
}

#[test]
fn tokens_of_people_have_a_file_of_keys_an_issuer_and_an_audience() {
    let text = "version: 1\ntokens: { human_jwt: { jwks_file: /keys.json, issuer: \"https://i.example.com\", audience: me } }";
    let human = read(text).tokens.human_jwt.unwrap();
    assert_eq!(human.jwks_file.to_str(), Some("/keys.json"));
    assert_eq!(
        (&*human.issuer, &*human.audience),
        ("https://i.example.com", "me")
    );
    assert_eq!(read("tokens: {}").tokens.human_jwt, None);
}

#[test]
fn a_proposer_without_an_editable_bundle_is_warned_about() {
    let text = "version: 1\npolicies: { servers: [policy_proposer] }";
    let (settings, _, warnings) = read_with(text, &[]).unwrap();
    assert_eq!(settings.servers.len(), 1);
    assert!(
        warnings[0].contains("policy_proposer refuses every proposal"),
        "{warnings:?}"
    );
}
