//! Errors in single files, as `line:column: key: message`.

use testkit::each_row;

use super::load_one;

/// Loads the text of each case after a line `version: 1`, and compares the errors, without the
/// file's name, with the expected lines. A text without errors gives the line `nothing`.
pub fn check_errors(file: &str, cases: &[(&str, &[&str])]) {
    let mut wrong = String::new();
    for (yaml, expected) in cases {
        let errors = match load_one(file, &format!("version: 1\n{yaml}")) {
            Ok(_) => "nothing".to_owned(),
            Err(errors) => errors.replace(&format!("{file}:"), ""),
        };
        if errors.lines().ne(expected.iter().copied()) {
            wrong.push_str(&format!("\n{yaml}\n=> {errors}\nnot {expected:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn unsupported_yaml_and_files_without_version_1_are_refused_with_their_place() {
    let deep = format!("domains: {}", "[".repeat(200));
    let long = format!("{}: 1", "k".repeat(300));
    check_errors(
        "allowlist.yaml",
        &[
            (
                "domains: [a.example",
                &[
                    "3:1: domains[1]: is not YAML: while parsing a flow sequence, expected ',' or ']'",
                ],
            ),
            (
                "domains: []\ndomains: [a.example]",
                &["3:1: domains: duplicate key, first in line 2"],
            ),
            (
                "domains:\n- {domain: a.example, 'domain': b.example}",
                &["3:23: domains[0].domain: duplicate key, first in line 3"],
            ),
            (
                "domains: &a [a.example]",
                &["2:10: domains: anchors are not read: write the value out"],
            ),
            (
                "domains: *a",
                &["2:10: domains: text that begins with * must be quoted: as in \"*.example.com\""],
            ),
            (
                "domains: [&a a.example, *a]",
                &[
                    "2:11: domains[0]: anchors are not read: write the value out",
                    "2:25: domains[1]: aliases are not read: write the value out",
                ],
            ),
            (
                "domains: [{<<: {domain: a.example}}]",
                &[
                    "2:11: domains[0].domain: is missing",
                    r#"2:12: domains[0]["<<"]: merge keys are not read: write the values out"#,
                ],
            ),
            (
                "domains: !!seq []",
                &["2:10: domains: tags are not read: write the value without its tag"],
            ),
            (
                "domains: [!x a.example]",
                &["2:11: domains[0]: tags are not read: write the value without its tag"],
            ),
            (
                "domains: []\n---\nversion: 1",
                &["3:1: a second document begins here: a file must hold only one"],
            ),
            (
                "? [a]\n: b",
                &["2:3: a key must be a text, not a list or a mapping"],
            ),
            (
                "? {a: b}\n: b",
                &["2:3: a key must be a text, not a list or a mapping"],
            ),
            (
                &deep,
                &[
                    "2:137: domains[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]: is nested deeper than 128 levels",
                ],
            ),
            (&long, &["2:1: a key is longer than 256 bytes"]),
            (
                "domains: \"\\q\"",
                &[
                    "2:10: domains: is not YAML: while parsing a quoted scalar, found unknown escape character",
                ],
            ),
            (
                "- a",
                &["2:3: is not YAML: while parsing a block mapping, did not find expected key"],
            ),
        ],
    );
    each_row(
        [
            (
                "",
                "allowlist.yaml:1:1: version: is missing: write version: 1",
            ),
            (
                "# nothing\n",
                "allowlist.yaml:1:1: version: is missing: write version: 1",
            ),
            (
                "domains: []",
                "allowlist.yaml:1:1: version: is missing: write version: 1",
            ),
            (
                "version: 2",
                "allowlist.yaml:1:10: version: must be 1, the only version there is",
            ),
            (
                "version: one",
                "allowlist.yaml:1:10: version: must be 1, the only version there is",
            ),
            (
                "version: \"1\"",
                "allowlist.yaml:1:10: version: must be 1, the only version there is",
            ),
            ("[]", "allowlist.yaml:1:1: must be a mapping"),
            ("text", "allowlist.yaml:1:1: must be a mapping"),
        ],
        |(text, expected)| {
            assert_eq!(
                load_one("allowlist.yaml", text).unwrap_err(),
                expected,
                "{text}"
            );
        },
    );
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_key_or_all_known_keys() {
    check_errors(
        "proxy.yaml",
        &[
            (
                "lisen: {}",
                &["2:1: lisen: unknown key; did you mean listen?"],
            ),
            (
                "limits: { max_conections: 1 }",
                &["2:11: limits.max_conections: unknown key; did you mean max_connections?"],
            ),
            (
                "limits:\n  zzz: 1",
                &[
                    "3:3: limits.zzz: unknown key; known here: max_connections, max_connections_per_container, header_read_timeout, max_header_bytes, inspect_body_bytes, inspect_values, inspect_timeout, inspect_memory, certificates_per_minute, tunnels_per_second",
                ],
            ),
            (
                "\"a\\nb\": 1",
                &[
                    r#"2:1: ["a\nb"]: unknown key; known here: version, listen, data_dir, certs_dir, tls, audit, admin_mode, admin_uids, shutdown_timeout, upstream, limits, dns, logging, approvals, tracing"#,
                ],
            ),
            (
                "upstream: { hosts: { git.example.com: 10.0.0.1, \"*.example.com\": 10.0.0.1 } }",
                &[
                    r#"2:49: upstream.hosts["*.example.com"]: the host name has an invalid character or label"#,
                ],
            ),
        ],
    );
}

#[test]
fn wrong_types_and_values_in_proxy_yaml_are_refused_with_their_place() {
    check_errors(
        "proxy.yaml",
        &[
            ("limits: []", &["2:9: limits: must be a mapping"]),
            ("limits: ~", &["2:9: limits: must be a mapping"]),
            (
                "listen: { proxy: 0.0.0.0:8080 }",
                &["2:18: listen.proxy: must be a list, [] for an empty one"],
            ),
            (
                "listen: { proxy: [8080, {}, \"s3cr3t\"] }",
                &[
                    "2:19: listen.proxy[0]: must be a text: put it in quotes",
                    "2:25: listen.proxy[1]: must be a text",
                    "2:29: listen.proxy[2]: must be an address and a port such as 0.0.0.0:8080 or [::]:8080",
                ],
            ),
            (
                "listen: { proxy: [] }",
                &["2:18: listen.proxy: must not be empty"],
            ),
            (
                "listen: { proxy: [\"127.0.0.1:1\"], dns: [\"127.0.0.1:1\"] }",
                &["2:41: listen.dns[0]: another listener has this address already"],
            ),
            (
                "listen: { admin: 7 }",
                &["2:18: listen.admin: must be a text: put it in quotes"],
            ),
            (
                "listen: { admin: \"\" }",
                &["2:18: listen.admin: must be a path"],
            ),
            (
                "admin_mode: 0600",
                &["2:13: admin_mode: must be a text: put it in quotes"],
            ),
            (
                "admin_mode: \"0999\"",
                &[r#"2:13: admin_mode: must be an octal file mode in quotes, such as "0600""#],
            ),
            (
                "admin_uids: [-1, 1.5, \"1\", 010, 99999999999]",
                &[
                    "2:14: admin_uids[0]: must be a whole number from 0 to 4294967294",
                    "2:18: admin_uids[1]: must be a whole number from 0 to 4294967294",
                    "2:23: admin_uids[2]: must be a whole number from 0 to 4294967294",
                    "2:28: admin_uids[3]: must be a whole number from 0 to 4294967294",
                    "2:33: admin_uids[4]: must be a whole number from 0 to 4294967294",
                ],
            ),
            (
                "shutdown_timeout: 10",
                &[
                    "2:19: shutdown_timeout: must be a duration such as 500ms, 10s, 5m or 24h, longer than 0 and at most 720h",
                ],
            ),
            (
                "shutdown_timeout: [10s]",
                &["2:19: shutdown_timeout: must be a duration"],
            ),
            (
                "certs_dir: /data\ndata_dir: /data/state",
                &[
                    "1:1: certs_dir: must not hold audit.path: sandboxes can read this directory",
                    "1:1: certs_dir: must not hold data_dir: sandboxes can read this directory",
                ],
            ),
            (
                "tls: { passthrough: [\"*.com\", \"*\", \"a_b\", \"a.example\", A.example.] }",
                &[
                    "2:22: tls.passthrough[0]: *.com is too broad, since com is a public suffix or a single label: name a registrable domain, as in *.example.com",
                    "2:31: tls.passthrough[1]: a wildcard is only allowed in front of a name, as in *.example.com",
                    "2:36: tls.passthrough[2]: the host name has an underscore: the proxy takes only letters, digits, hyphens and dots, so the server needs another name",
                    "2:56: tls.passthrough[4]: a.example is listed already, in line 2",
                ],
            ),
            (
                "tls: { upstream_ca: /nowhere/ca.pem }",
                &["2:21: tls.upstream_ca: cannot be read: No such file or directory (os error 2)"],
            ),
            (
                "upstream: { nameservers: [dns.example], hosts: { 10.0.0.1: 10.0.0.2, a.example: b.example, b.example: \"10.0.0.1:0\" } }",
                &[
                    "2:27: upstream.nameservers[0]: must be an address such as 10.0.0.2, or with a port 10.0.0.2:5353",
                    r#"2:50: upstream.hosts["10.0.0.1"]: must be a name, not an address"#,
                    r#"2:81: upstream.hosts["a.example"]: must be an address such as 10.0.0.2, or with a port 10.0.0.2:8443"#,
                    r#"2:103: upstream.hosts["b.example"]: the port must not be 0"#,
                ],
            ),
            (
                "upstream: { allow_private: [10.0.0.1, 10.0.0.1/8] }",
                &[
                    "2:29: upstream.allow_private[0]: must be a network such as 10.1.0.0/16",
                    "2:39: upstream.allow_private[1]: has bits behind its prefix: write the first address of the network",
                ],
            ),
            (
                "limits: { max_connections: 0, max_header_bytes: 1KB, inspect_body_bytes: 2GB }",
                &[
                    "2:28: limits.max_connections: must be a whole number from 1 to 1000000",
                    "2:49: limits.max_header_bytes: must be a number of bytes or a size such as 100MB, from 8KB to 256KB",
                    "2:74: limits.inspect_body_bytes: must be a number of bytes or a size such as 100MB, from 1KB to 1GB",
                ],
            ),
            (
                "limits: { max_header_bytes: '1MiB', inspect_body_bytes: [1MB] }",
                &[
                    "2:29: limits.max_header_bytes: must be a number of bytes or a size such as 100MB, from 8KB to 256KB",
                    "2:57: limits.inspect_body_bytes: must be a number of bytes or a size such as 100MB, from 1KB to 1GB",
                ],
            ),
            (
                "dns: { types: [A, HTTPS], queries_per_minute: true }",
                &[
                    "2:19: dns.types[1]: must be one of A, NS, CNAME, SOA, PTR, MX, TXT, AAAA, SRV, NAPTR, TLSA, CAA",
                    "2:47: dns.queries_per_minute: must be a whole number from 1 to 1000000",
                ],
            ),
            (
                "logging: { level: verbose, format: xml }",
                &[
                    "2:19: logging.level: must be off, error, warn, info, debug or trace, or directives such as info,unified_proxy=debug",
                    "2:36: logging.format: must be one of json, text",
                ],
            ),
            (
                "tracing: { otlp_endpoint: \"http://collector.example.com:4318/#x\" }",
                &[
                    "2:27: tracing.otlp_endpoint: must be the http:// or https:// URL of an OTLP collector, such as http://collector.example.com:4318",
                ],
            ),
            (
                "tracing: { otlp_endpoint: \"collector.example.com:4318\" }",
                &[
                    "2:27: tracing.otlp_endpoint: must be the http:// or https:// URL of an OTLP collector, such as http://collector.example.com:4318",
                ],
            ),
            (
                "approvals:\n  notify:\n  - { url: hooks.example.com, secret: a }\n  - { url: \"https://hooks.example.com/\" }\n  - { url: \"https://hooks.example.com/\", secret: \"\", argument: true }",
                &[
                    "4:12: approvals.notify[0].url: must be an http:// or https:// URL, such as https://hooks.example.com/x",
                    "5:5: approvals.notify[1].secret: is missing",
                    "6:50: approvals.notify[2].secret: must be the key of the signature, for example ${NOTIFY_SECRET}",
                    "6:54: approvals.notify[2].argument: unknown key; did you mean arguments?",
                ],
            ),
            (
                "limits: { tunnels_per_second: 0 }\naudit: { bytes_per_minute_per_container: 63KB }",
                &[
                    "2:31: limits.tunnels_per_second: must be a whole number from 1 to 1000000",
                    "3:42: audit.bytes_per_minute_per_container: must be a number of bytes or a size such as 100MB, from 64KB to 1GB",
                ],
            ),
            (
                "audit: { path: [], max_bytes: 1, keep: many }",
                &[
                    "2:16: audit.path: must be a text",
                    "2:31: audit.max_bytes: must be a number of bytes or a size such as 100MB, from 1MB to 1024GB",
                    "2:40: audit.keep: must be a whole number from 1 to 1000",
                ],
            ),
        ],
    );
}

#[test]
fn invalid_policies_are_refused_with_their_place() {
    check_errors(
        "policy.yaml",
        &[
            (
                "policy: { blocked_api_patterns: { PUSH: [\"^/\"], PUT: [\"(\", \"(\\\\w{1000}){1000}\"] } }",
                &[
                    "2:35: policy.blocked_api_patterns.PUSH: must be one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
                    "2:55: policy.blocked_api_patterns.PUT[0]: is not a regular expression: unclosed group",
                    "2:60: policy.blocked_api_patterns.PUT[1]: is not accepted: the compiled pattern would be larger than 1 MB",
                ],
            ),
            (
                "policy: { blocked_graphql_mutations: [\"a b\"], github_writes: all }",
                &[
                    "2:39: policy.blocked_graphql_mutations[0]: must be the name of a mutation",
                    "2:62: policy.github_writes: must be one of allowlist, blocklist",
                ],
            ),
            (
                "policy: { blocked_mentions: [copilot, \"@\", \"@a b\", \"@copilot-\", 7] }",
                &[
                    "2:30: policy.blocked_mentions[0]: must be @ and a login, in quotes, such as \"@copilot\"",
                    "2:39: policy.blocked_mentions[1]: must be @ and a login, in quotes, such as \"@copilot\"",
                    "2:44: policy.blocked_mentions[2]: must be @ and a login, in quotes, such as \"@copilot\"",
                    "2:52: policy.blocked_mentions[3]: must be @ and a login, in quotes, such as \"@copilot\"",
                    "2:65: policy.blocked_mentions[4]: must be a text: put it in quotes",
                ],
            ),
            (
                "policy: { blocked_mentions: \"@copilot\" }",
                &["2:29: policy.blocked_mentions: must be a list, [] for an empty one"],
            ),
            (
                "policy: { rules: [{}] }",
                &[
                    "2:19: policy.rules[0].effect: is missing",
                    "2:19: policy.rules[0].name: is missing",
                ],
            ),
            (
                "policy:\n  rules:\n    - { name: a, effect: maybe, hosts: [\"*\"], methods: [get], paths: [\"[\"] }\n    - { name: a, effect: deny }",
                &[
                    "4:26: policy.rules[0].effect: must be one of allow, deny, ask",
                    "4:41: policy.rules[0].hosts[0]: a wildcard is only allowed in front of a name, as in *.example.com",
                    "4:57: policy.rules[0].methods[0]: must be one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
                    "4:71: policy.rules[0].paths[0]: is not a regular expression: unclosed character class",
                    "5:15: policy.rules[1].name: must be a name that no other rule has",
                ],
            ),
            (
                "policy: { allow_branch_deletion: maybe }",
                &["2:34: policy.allow_branch_deletion: must be true or false"],
            ),
            (
                "git: { hosts: [\"*.example.com\", github.com, github.com, { api: a.example }] }",
                &[
                    "2:16: git.hosts[0]: the host name has an invalid character or label",
                    "2:45: git.hosts[2]: github.com is listed twice",
                    "2:57: git.hosts[3].host: is missing",
                ],
            ),
            (
                "git: { hosts: [github.com, { host: ghe.example.com, api: api.github.com }] }",
                &["2:28: git.hosts[1]: api.github.com is listed twice"],
            ),
            (
                "git: { bot_branch_prefixes: [sandbox/, refs/heads/, refs/heads/x, refs/heads/../x/, refs/tags/x/] }",
                &[
                    "2:30: git.bot_branch_prefixes[0]: must be a prefix of branches such as refs/heads/sandbox/",
                    "2:40: git.bot_branch_prefixes[1]: must be a prefix of branches such as refs/heads/sandbox/",
                    "2:53: git.bot_branch_prefixes[2]: must be a prefix of branches such as refs/heads/sandbox/",
                    "2:67: git.bot_branch_prefixes[3]: must be a prefix of branches such as refs/heads/sandbox/",
                    "2:85: git.bot_branch_prefixes[4]: must be a prefix of branches such as refs/heads/sandbox/",
                ],
            ),
            (
                "git: { public_reads: true, push_denials: silent }",
                &[
                    "2:22: git.public_reads: must be one of deny, allow",
                    "2:42: git.push_denials: must be one of report, status",
                ],
            ),
            (
                "git: { push_limits: { warning_bytes: 2MB, hard_limit_bytes: 1MB } }",
                &["2:21: git.push_limits.warning_bytes: must not be above hard_limit_bytes"],
            ),
            (
                "circuit_breakers: { defaults: { failure_threshold: 0, recovery_timeout: 0 }, upstreams: { \"*.com\": {}, a.example: { x: 1 } } }",
                &[
                    "2:52: circuit_breakers.defaults.failure_threshold: must be a whole number from 1 to 1000000",
                    "2:73: circuit_breakers.defaults.recovery_timeout: must be a duration such as 500ms, 10s, 5m or 24h, longer than 0 and at most 720h",
                    r#"2:91: circuit_breakers.upstreams["*.com"]: *.com is too broad, since com is a public suffix or a single label: name a registrable domain, as in *.example.com"#,
                    r#"2:117: circuit_breakers.upstreams["a.example"].x: unknown key; known here: failure_threshold, recovery_timeout, success_threshold"#,
                ],
            ),
            (
                "rate_limits: { enabled: 1, defaults: { burst_size: 0 }, per_upstream: { a.example: 5, A.example: {}, a.example.: {} } }",
                &[
                    "2:25: rate_limits.enabled: must be true or false",
                    "2:52: rate_limits.defaults.burst_size: must be a whole number from 1 to 1000000",
                    r#"2:84: rate_limits.per_upstream["a.example"]: must be a mapping"#,
                    r#"2:102: rate_limits.per_upstream["a.example."]: duplicate host"#,
                ],
            ),
        ],
    );
}
