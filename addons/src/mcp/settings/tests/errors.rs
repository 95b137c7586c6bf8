use testkit::each_row;

use super::*;

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
                "overrides: { \"claude-code:Bash\": { hide_fields: [run_in_background] } }",
                "mcp.yaml:2:49: overrides[\"claude-code:Bash\"].hide_fields: another program runs this tool with its own arguments: only annotations, classification and containers count",
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
                "policies: { evaluator: { kind: opa } }",
                "mcp.yaml:2:32: policies.evaluator.kind: must be one of rego, command",
            ),
            (
                "policies: { evaluator: { kind: command } }",
                "mcp.yaml:2:24: policies.evaluator.command: is missing",
            ),
            (
                "policies: { evaluator: { kind: command, command: [] } }",
                "mcp.yaml:2:50: policies.evaluator.command: must not be empty",
            ),
            (
                "policies: { evaluator: { kind: command, command: [\"\"] } }",
                "mcp.yaml:2:50: policies.evaluator.command: must name a program",
            ),
            (
                "policies: { evaluator: { memory: 64MB } }",
                "mcp.yaml:2:34: policies.evaluator.memory: belongs to kind: command: add it, or remove this key",
            ),
            (
                "policies: { evaluator: { kind: command, command: x, memory: 1MB } }",
                "mcp.yaml:2:61: policies.evaluator.memory: must be a number of bytes or a size such as 100MB, from 32MB to 1024GB",
            ),
            (
                "policies: { evaluator: { kind: command, command: x, cpus: 0.5 } }",
                "mcp.yaml:2:59: policies.evaluator.cpus: must be a whole number from 1 to 1024",
            ),
            (
                "policies: { evaluator: { kind: command, command: x, env: { POLICY_SRC: a } } }",
                "mcp.yaml:2:58: policies.evaluator.env: POLICY_SRC is set by the proxy: choose another name",
            ),
            (
                "policies: { evaluator: { kind: command, command: x, hosts: [a.example.com] } }",
                "mcp.yaml:2:53: policies.evaluator.hosts: unknown key; known here: kind, timeout, command, args, env, source, work_dir, cwd, read, confine, memory, cpus, methods",
            ),
            (
                "policies: { bundles: [{ id: a, path: /p, entrypoint: a }], evaluator: { kind: command, command: x } }",
                "mcp.yaml:2:79: policies.evaluator.kind: command cannot be combined with policies.bundles: remove the bundles, or this kind",
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
