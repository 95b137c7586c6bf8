//! Allowed and denied requests, the summary of denials at the end of a run, and its audit log.

use serde_json::json;
use testkit::each_row;

use crate::fixture::Person;
use crate::support::free_address;

const SECRET: &str = "real-4f9a1c7be02d58c36e";

/// The words of each line of the summary of denials in standard error.
pub fn summary(stderr: &str) -> Vec<Vec<&str>> {
    let lines = stderr
        .lines()
        .skip_while(|line| *line != "unified-proxy: denied")
        .skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn an_allowed_request_carries_the_credential_that_the_sandbox_does_not_see() {
    let Some(mut person) = Person::new() else {
        return;
    };
    person.setup.credential(json!({
        "name": "key", "hosts": ["api.example.com"], "set_headers": { "x-api-key": SECRET },
    }));
    let script = "curl -sSf https://api.example.com/echo -H 'x-api-key: mine'; env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'";
    let ran = person.sh(&[], script);
    assert_eq!(person.origin.only().header("x-api-key"), Some(SECRET));
    assert_eq!(ran.stderr, "", "nothing was denied");
    let said = ran.ok();
    assert!(
        said.contains("[REDACTED:key]") && !said.contains(SECRET),
        "{said}"
    );
}

#[test]
fn common_clients_reach_allowed_hosts_through_the_proxy() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            "curl -sSf http://plain.example.com/echo",
            "curl -sSf https://api.example.com/echo",
            "wget -qO- http://plain.example.com/echo",
            "wget -qO- https://api.example.com/echo",
            "python3 -c 'import urllib.request as u; print(u.urlopen(\"https://api.example.com/echo\").status)'",
            "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://plain.example.com/echo\").status)'",
            "openssl s_client -proxy 127.0.0.1:3128 -connect api.example.com:443 -verify_return_error </dev/null",
        ],
        |client| {
            let ran = person.sh(&[], client);
            assert_eq!(ran.code, Some(0), "{ran:?}");
        },
    );
}

#[test]
fn denied_hosts_are_in_the_summary_once_each_with_the_flag_that_allows_them() {
    let Some(person) = Person::new() else { return };
    let script = "curl -s -o /dev/null -w '%{http_connect}\\n' https://packages.example.org/;\
        for i in 1 2; do curl -s -o /dev/null https://packages.example.org/; done;\
        curl -s http://mirror.example.org/;\
        curl -s -o /dev/null https://api.example.com:8443/; true";
    let ran = person.sh(&[], script);
    assert_eq!(
        summary(&ran.stderr),
        [
            vec![
                "api.example.com:8443",
                "1",
                "time",
                "--allow",
                "api.example.com:8443"
            ],
            vec![
                "mirror.example.org",
                "1",
                "time",
                "--allow",
                "mirror.example.org"
            ],
            vec![
                "packages.example.org",
                "3",
                "times",
                "--allow",
                "packages.example.org"
            ],
        ],
        "{}",
        ran.stderr
    );
    let said = ran.ok();
    assert!(said.starts_with("403\n"), "{said}");
    assert!(
        said.contains("Domain not allowed: mirror.example.org"),
        "{said}"
    );
    person.origin.assert_untouched();
}

#[test]
fn the_flag_allow_permits_only_the_given_hosts_and_ports() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let https = person.origin.https;
    let port = https.port();
    person.setup.proxy["upstream"]["hosts"]["git.example.com"] = json!(https.ip().to_string());
    person.setup.proxy["upstream"]["hosts"]["a.team.example.com"] = json!(https.to_string());
    person.setup.allowlist = json!({ "version": 1, "domains": [] });
    let other = free_address().port();
    let name_and_port = format!("git.example.com:{port}");
    each_row(
        [
            (vec![], "https://api.example.com/zen".to_owned(), false),
            (
                vec!["--allow", "api.example.com"],
                "https://api.example.com/zen".to_owned(),
                true,
            ),
            (
                vec!["--allow", "api.example.com"],
                "https://other.example.com/zen".to_owned(),
                false,
            ),
            (
                vec!["--allow", "*.example.com"],
                "https://api.example.com/zen".to_owned(),
                true,
            ),
            (
                vec!["--allow", "plain.example.com", "--allow", "api.example.com"],
                "https://api.example.com/zen".to_owned(),
                true,
            ),
            (
                vec!["--allow", &name_and_port],
                format!("https://{name_and_port}/zen"),
                true,
            ),
            (
                vec!["--allow", &name_and_port],
                "https://git.example.com/zen".to_owned(),
                false,
            ),
            (
                vec!["--allow", &name_and_port],
                format!("https://git.example.com:{other}/zen"),
                false,
            ),
        ],
        |(flags, url, allowed)| {
            let ran = person.run(&flags, &["curl", "-sf", &url]);
            assert_eq!(ran.code == Some(0), allowed, "{ran:?}");
            assert_eq!(summary(&ran.stderr).is_empty(), allowed, "{ran:?}");
        },
    );
}

#[test]
fn quiet_suppresses_the_summary_but_not_the_denial() {
    let Some(person) = Person::new() else { return };
    let ran = person.run(
        &["--quiet"],
        &["curl", "-sf", "https://packages.example.org/"],
    );
    assert_ne!(ran.code, Some(0));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
}

#[test]
fn an_upload_and_a_download_of_10_megabytes_arrive_whole() {
    let Some(person) = Person::new() else { return };
    let script = "head -c 10485760 /dev/zero > body; curl -sSf https://api.example.com/bytes/10485760 | wc -c;\
        curl -sSf -T body https://api.example.com/echo | grep -o '\"received\":[0-9]*'";
    assert_eq!(
        person.sh(&[], script).ok(),
        "10485760\n\"received\":10485760\n"
    );
}

#[test]
fn the_audit_log_is_kept_and_has_the_requests() {
    let Some(person) = Person::new() else { return };
    person
        .sh(
            &[],
            "curl -s https://packages.example.org/; curl -s https://api.example.com/zen",
        )
        .code
        .unwrap();
    let runs = person.home().join(".local/state/unified-proxy/runs");
    let logs = std::fs::read_dir(runs)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let logs: Vec<_> = logs
        .filter(|log| log.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    let [log] = &logs[..] else { panic!("{logs:?}") };
    let text = std::fs::read_to_string(log).unwrap();
    for part in [
        "packages.example.org",
        "domain_not_allowed",
        "api.example.com",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&log.metadata().unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}
