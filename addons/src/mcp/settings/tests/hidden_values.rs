//! Values that may be secrets.

use testkit::each_row;

use super::*;

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
