use serde_json::json;

use super::remedy::repository;
use super::*;

#[test]
fn denied_hosts_are_listed_with_their_counts_and_with_a_flag_or_the_code() {
    let mut report = Report::default();
    for (host, port, code, path, kind) in [
        (
            "packages.example.com",
            443,
            "domain_not_allowed",
            "",
            "connect",
        ),
        ("packages.example.com", 53, "domain_not_allowed", "", "dns"),
        ("git.example.com", 8443, "port_not_allowed", "", "connect"),
        (
            "github.com",
            443,
            "repo_not_authorized",
            "/octo/cat.git/info/refs",
            "http",
        ),
        (
            "api.github.com",
            443,
            "api_blocked",
            "/repos/octo/cat/pulls/1/merge",
            "http",
        ),
        (
            "github.com",
            443,
            "bot_branch_restricted",
            "/octo/cat.git/git-receive-pack",
            "http",
        ),
        (
            "github.com",
            443,
            "malformed_request",
            "/octo/cat.git/git-receive-pack",
            "http",
        ),
    ] {
        report.add(&json!({
            "kind": kind, "host": host, "port": port, "outcome": "denied", "code": code, "path": path,
        }));
    }
    report.add(
        &json!({ "kind": "http", "host": "api.example.com", "port": 443, "outcome": "allowed" }),
    );
    let lines = report.denials();
    let lines: Vec<Vec<&str>> = lines
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines,
        [
            vec!["api.github.com/octo/cat", "1", "time", "api_blocked"],
            vec![
                "git.example.com:8443",
                "1",
                "time",
                "--allow",
                "git.example.com:8443"
            ],
            vec!["github.com", "1", "time", "malformed_request"],
            vec!["github.com/octo/cat", "1", "time", "--repo", "octo/cat"],
            vec!["github.com/octo/cat", "1", "time", "bot_branch_restricted"],
            vec![
                "packages.example.com",
                "2",
                "times",
                "--allow",
                "packages.example.com"
            ],
        ]
    );
}

#[test]
fn a_denial_names_the_variable_of_a_placeholder_and_no_flag_that_would_not_help() {
    let masked = [("p1", "ANTHROPIC_API_KEY"), ("p2", "MY_TOKEN")];
    let masked = masked.map(|(placeholder, name)| (placeholder.to_owned(), name.to_owned()));
    for (host, code, rule, expected, not_expected) in [
        (
            "api.anthropic.com",
            "credential_misuse",
            "p1",
            "--with-logins   (the command has a placeholder for $ANTHROPIC_API_KEY)",
            "credential_misuse",
        ),
        (
            "a.example.com",
            "credential_misuse",
            "p1",
            "$ANTHROPIC_API_KEY",
            "--with-logins",
        ),
        (
            "a.example.com",
            "credential_misuse",
            "p2",
            "$MY_TOKEN",
            "--with-logins",
        ),
        (
            "a.example.com",
            "credential_misuse",
            "p3",
            "credential_misuse",
            "$",
        ),
        (
            "unified-proxy",
            "domain_not_allowed",
            "",
            "the sandbox itself",
            "--allow",
        ),
        (
            "sandbox",
            "domain_not_allowed",
            "",
            "the sandbox itself",
            "--allow",
        ),
    ] {
        let mut report = Report::new(masked.clone().into());
        report.add(&json!({
            "kind": "http", "host": host, "port": 443, "outcome": "denied", "code": code, "rule": rule,
        }));
        let text = report.denials();
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains(not_expected), "{text}");
    }
}

#[test]
fn a_denied_server_of_this_machine_has_the_flag_for_its_port_or_the_code_if_none_would_help() {
    for (host, port, code, expected) in [
        (
            "localhost",
            18434,
            "domain_not_allowed",
            "--allow-host-port 18434",
        ),
        (
            "127.0.0.1",
            8443,
            "address_not_allowed",
            "--allow-host-port 8443",
        ),
        (
            "localhost",
            8443,
            "port_not_allowed",
            "--allow-host-port 8443",
        ),
        ("localhost", 80, "domain_not_allowed", "domain_not_allowed"),
        ("localhost", 443, "port_not_allowed", "port_not_allowed"),
        (
            "localhost",
            3128,
            "domain_not_allowed",
            "domain_not_allowed",
        ),
        (
            "127.0.0.2",
            18434,
            "address_not_allowed",
            "address_not_allowed",
        ),
        (
            "a.localhost",
            18434,
            "domain_not_allowed",
            "domain_not_allowed",
        ),
        ("localhost", 18434, "rate_limited", "rate_limited"),
    ] {
        let mut report = Report::default();
        report.add(&json!({ "host": host, "port": port, "outcome": "denied", "code": code }));
        let text = report.denials();
        let (_, remedy) = text.trim_end().split_once(" time   ").unwrap();
        assert_eq!(remedy, expected, "{host}:{port} {code}");
    }
}

#[test]
fn a_repository_is_found_in_paths_of_git_hosts_and_of_their_apis() {
    for (host, path, expected) in [
        ("github.com", "/octo/cat.git/info/refs", Some("octo/cat")),
        ("api.github.com", "/repos/octo/cat/pulls", Some("octo/cat")),
        (
            "git.example.com",
            "/api/v3/repos/octo/cat",
            Some("octo/cat"),
        ),
        ("git.example.com", "/api/graphql", None),
        ("api.github.com", "/user/repos", None),
        ("api.github.com", "/repositories/123", None),
    ] {
        let found = repository(host, path);
        assert_eq!(found.as_deref(), expected, "{host}{path}");
    }
}

#[test]
fn the_learned_allowlist_names_unusual_ports_and_marks_denied_hosts() {
    let mut report = Report::default();
    for (host, port, outcome) in [
        ("a.example.com", 443, "allowed"),
        ("b.example.com", 8443, "denied"),
    ] {
        report.add(&json!({ "host": host, "port": port, "outcome": outcome, "code": "domain_not_allowed" }));
    }
    report
        .add(&json!({ "kind": "dns", "host": "a.example.com", "port": 53, "outcome": "allowed" }));
    report.add(
        &json!({ "kind": "mcp", "host": "unified-proxy", "port": 8090, "outcome": "allowed" }),
    );
    report.add(&json!({ "host": "*", "port": 443, "outcome": "denied", "count": 7 }));
    let text = report.allowlist(false);
    assert!(text.contains("  - \"a.example.com\"\n"), "{text}");
    assert!(
        text.contains("  - { domain: \"b.example.com\", ports: [8443] }  # was denied\n"),
        "{text}"
    );
    assert_eq!(text.matches("\n  - ").count(), 2, "{text}");
}

#[test]
fn a_host_allowed_after_a_denial_is_no_longer_marked_as_denied_even_if_the_list_is_full() {
    let mut report = Report::default();
    for number in 0..MAX_LINES * 10 + 1 {
        report.add(&json!({ "host": format!("h{number}.example.com"), "outcome": "denied" }));
    }
    report.add(&json!({ "host": "h0.example.com", "outcome": "allowed" }));
    let text = report.allowlist(false);
    assert!(text.contains("  - \"h0.example.com\"\n"), "{text}");
    assert_eq!(text.matches("# was denied").count(), MAX_LINES * 10 - 1);
}

/// The line of a person's act.
fn act(method: &str, subject: &str, reason: &str) -> Value {
    json!({
        "kind": "mcp", "host": "unified-proxy", "port": 8090, "outcome": "allowed",
        "method": method, "path": subject, "reason": reason, "rule": "operator: uid 1000 (ann)",
    })
}

/// The line of a CONNECT; `code` is empty if it passed.
fn connect(host: &str, port: u64, code: &str) -> Value {
    let outcome = if code.is_empty() { "allowed" } else { "denied" };
    json!({
        "kind": "connect", "host": host, "port": port, "outcome": outcome, "code": code,
        "rule": "policy.unknown_hosts",
    })
}

#[test]
fn what_a_person_decided_is_listed_with_the_flag_and_no_longer_as_denied() {
    let mut report = Report::default();
    for line in [
        connect("packages.example.com", 443, "approval_pending"),
        json!({ "kind": "dns", "host": "packages.example.com", "outcome": "denied", "code": "domain_not_allowed" }),
        act(
            "operator/approve",
            "packages.example.com:443",
            "for 600s: for the build",
        ),
        connect("packages.example.com", 443, ""),
        connect("git.example.com", 8443, "approval_pending"),
        act("operator/approve", "git.example.com:8443", "lease"),
        connect("git.example.com", 8443, ""),
        connect("ads.example.com", 443, "approval_pending"),
        act("operator/deny", "ads.example.com:443", "not needed"),
        connect("ads.example.com", 443, "approval_rejected"),
        connect("later.example.com", 443, "approval_pending"),
        connect("guarded.example.com", 443, "approval_pending"),
        act("operator/approve", "guarded.example.com:443", "for 600s"),
        connect("guarded.example.com", 443, "address_not_allowed"),
        act("operator/approve", "PUT api.example.com:443 /a", "for 600s"),
    ] {
        report.add(&line);
    }
    assert_eq!(
        report.denials(),
        "unified-proxy: denied\n\
         \x20 guarded.example.com     1 time   address_not_allowed\n\
         \x20 later.example.com       1 time   --allow later.example.com   (nobody answered)\n"
    );
    assert_eq!(
        report.decisions(false),
        "unified-proxy: decided by a person\n\
         \x20 PUT api.example.com:443 /a  approved for 600s\n\
         \x20 ads.example.com             denied: not needed\n\
         \x20 git.example.com:8443        approved for the run   --allow git.example.com:8443\n\
         \x20 guarded.example.com         approved for 600s   --allow guarded.example.com\n\
         \x20 packages.example.com        approved for 600s   --allow packages.example.com\n\
         unified-proxy: to allow these hosts without a question, add the options above, or write an \
         allowlist with --learn FILE\n"
    );
    assert!(!report.decisions(true).contains("--learn"));
    let learned = report.allowlist(true);
    let domains = learned.split_once("domains:\n").unwrap().1;
    assert_eq!(
        domains,
        "  - { domain: \"git.example.com\", ports: [8443] }\n  - \"packages.example.com\"\n"
    );
}

#[test]
fn what_a_person_took_back_is_neither_offered_nor_learned() {
    let mut report = Report::default();
    for line in [
        act("operator/grant", "a.example.com:443", "lease"),
        connect("a.example.com", 443, ""),
        act("operator/revoke", "a.example.com:443", "lease"),
        act("operator/deny", "b.example.com:443", ""),
        act("operator/forget", "b.example.com:443", ""),
        act("operator/approve", "b.example.com:443", "for 60s"),
    ] {
        report.add(&line);
    }
    let decided = report.decisions(true);
    assert_eq!(
        decided.lines().skip(1).collect::<Vec<_>>(),
        ["  b.example.com  approved for 60s   --allow b.example.com"]
    );
    assert!(report.allowlist(true).ends_with("domains: []\n"));
}

#[test]
fn the_approval_of_a_rules_question_about_a_host_offers_no_flag() {
    let mut report = Report::default();
    let mut asked = connect("a.example.com", 443, "approval_pending");
    let mut approved = act("operator/approve", "a.example.com:443", "lease");
    asked["rule"] = "reviewed".into();
    for line in [&mut asked, &mut approved] {
        line["approval"] = "0a".into();
        report.add(line);
    }
    assert_eq!(
        report.decisions(false),
        "unified-proxy: decided by a person\n  a.example.com:443  approved for the run\n"
    );
}

#[test]
fn a_command_cannot_pretend_that_a_person_decided() {
    let mut report = Report::default();
    let mut message = act("operator/approve", "evil.example.com:443", "lease");
    for rule in ["", "unknown method", "grant 0a"] {
        message["rule"] = rule.into();
        report.add(&message);
    }
    assert_eq!(report.decisions(false), "");
    let ask = json!({ "kind": "http", "host": "a.example.com", "port": 443, "outcome": "denied",
        "code": "approval_pending", "rule": "writes" });
    report.add(&ask);
    assert!(
        report.denials().ends_with("approval_pending\n"),
        "a rule's question needs no --allow"
    );
}
