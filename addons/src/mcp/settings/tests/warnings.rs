use testkit::each_row;

use super::*;

#[test]
fn settings_that_weaken_security_or_have_no_effect_are_warned_about() {
    let text = "version: 1\nmcpServers: { a: { command: x, confine: none } }\npolicies: { on_unavailable: allow }\napprovals: { wait: 50s }";
    assert_eq!(
        read_with(text, &[]).unwrap().2,
        [
            "mcp.yaml:4: approvals has no effect here: write it in proxy.yaml",
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
