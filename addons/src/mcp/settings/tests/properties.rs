//! Generated files.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,12}".prop_filter("reserved", |name| names::server_name(name).is_ok())
}

fn words() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[ -~]{1,12}", 1..5)
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
