//! Questions of rules, and the settings of asking.

use testkit::each_row;

use super::*;

#[tokio::test]
async fn a_rule_asks_about_method_host_port_and_path_and_its_grant_covers_nothing_else() {
    let rules = "unknown_hosts: ask, rules: [
        { name: writes, effect: ask, hosts: [files.example.com], methods: [PUT, DELETE] }]";
    let fixture = Fixture::new(rules);
    {
        let mut live = fixture.ledger.live.lock();
        live.push(to_host("files.example.com:443"));
        live.push(to_host("files.example.com:8443"));
        live.push(live_request("PUT files.example.com:443 /a"));
    }
    let pending = Some(Code::ApprovalPending);
    for (method, authority, target, denied) in [
        (Method::PUT, "files.example.com:443", "/a", None),
        (Method::PUT, "files.example.com:443", "/a?b=c", None),
        (Method::GET, "files.example.com:443", "/b", None),
        (Method::DELETE, "files.example.com:443", "/a", pending),
        // A form field may turn the POST into a DELETE.
        (Method::POST, "files.example.com:443", "/a", pending),
        (Method::PUT, "files.example.com:8443", "/a", pending),
        (Method::PUT, "files.example.com:443", "/a/", pending),
        (Method::PUT, "files.example.com:443", "/A", pending),
        (
            Method::PUT,
            "files.example.com:443",
            "/b/../a",
            Some(Code::MalformedRequest),
        ),
        (
            Method::PUT,
            "files.example.com:443",
            "/%2fa",
            Some(Code::MalformedRequest),
        ),
    ] {
        let judged = fixture.send(method.clone(), authority, target).await;
        assert_eq!(code(judged), denied, "{method} {authority}{target}");
    }
    let subjects = fixture.ledger.subjects();
    assert_eq!(subjects[0], "DELETE files.example.com:443 /a");
    assert_eq!(subjects.len(), 5);
    let asked = fixture.ledger.asked.lock();
    let topic = asked[0].topic();
    assert_eq!(topic.kind, QuestionKind::Request);
    assert_eq!(topic.rule.as_deref(), Some("writes"));
}

fn live_request(subject: &str) -> LiveGrant {
    live(QuestionKind::Request, subject)
}

#[tokio::test]
async fn a_rule_without_methods_and_paths_asks_about_host_and_port() {
    let rules = "rules: [{ name: first, effect: ask, hosts: [\"*.example.com\"] }]";
    let fixture = Fixture::new(rules);
    let listed = async |kind| {
        let mut flow = start_of(&fixture.container, kind, HOST).begin();
        match kind {
            Kind::Tunnel => fixture.chain.tunnel(&mut flow).await.map(drop),
            _ => fixture
                .chain
                .request(&mut flow, &mut request("/a", &[]))
                .await
                .map(drop),
        }
    };
    for kind in [Kind::Tunnel, Kind::Http] {
        assert_eq!(code(listed(kind).await), Some(Code::ApprovalPending));
    }
    let subject = "files.example.com:443";
    assert_eq!(fixture.ledger.subjects(), [subject, subject]);
    fixture.ledger.live.lock().push(live_request(subject));
    for kind in [Kind::Tunnel, Kind::Http] {
        assert_eq!(code(listed(kind).await), None);
    }
    *fixture.ledger.answer.lock() = Ok(ApprovalAnswer::Full(QuestionLimit::Rate));
    fixture.ledger.live.lock().clear();
    let denial = listed(Kind::Http).await.unwrap_err();
    assert_eq!(denial.code(), Code::RuleDenied);
    assert_eq!(denial.detail("outcome"), Some("full"));
}

#[tokio::test]
async fn a_question_is_outdated_once_its_rule_or_setting_has_changed() {
    let rule = |paths: &str| {
        format!("unknown_hosts: ask, rules: [{{ name: a, effect: ask, paths: [\"{paths}\"] }}]")
    };
    let settings = |policy: &str| {
        let file = format!("version: 1\npolicy: {{ {policy} }}\n");
        read_files(&[("policy.yaml", &*file)], PolicySettings::read).unwrap()
    };
    let fixture = Fixture::new(&rule("^/x"));
    fixture
        .ledger
        .live
        .lock()
        .push(to_host("files.example.com:443"));
    let asked = fixture
        .send(Method::GET, "files.example.com:443", "/x")
        .await;
    assert_eq!(code(asked), Some(Code::ApprovalPending));
    let asked = fixture.connect("other.example.com:443").await;
    assert_eq!(code(asked), Some(Code::ApprovalPending));
    let topics = fixture.ledger.asked.lock();
    let topics: Vec<_> = topics
        .iter()
        .map(|question| question.topic().clone())
        .collect();
    each_row(
        [
            (rule("^/x"), [true, true]),
            (rule("^/y"), [false, true]),
            (rule("^/x").replace("name: a", "name: b"), [false, true]),
            (
                rule("^/x").replace("effect: ask", "effect: deny"),
                [false, true],
            ),
            ("unknown_hosts: deny".to_owned(), [false, false]),
        ],
        |(policy, current)| {
            let settings = settings(&policy);
            let still: Vec<_> = topics
                .iter()
                .map(|topic| settings.still_asks(topic))
                .collect();
            assert_eq!(still, current, "{policy}");
        },
    );
}

#[test]
fn the_settings_of_asking_are_checked() {
    each_row(
        [
            ("policy.yaml", "policy: { unknown_hosts: ask }", ""),
            (
                "policy.yaml",
                "policy: { unknown_hosts: maybe }",
                "unknown_hosts",
            ),
            ("proxy.yaml", "approvals: { hold: 0s }", ""),
            ("proxy.yaml", "approvals: { hold: 8s }", ""),
            (
                "proxy.yaml",
                "approvals: { hold: 9s }",
                "must be at most 8s",
            ),
            (
                "proxy.yaml",
                "approvals: { hold: soon }",
                "must be a duration",
            ),
        ],
        |(file, text, wrong)| {
            let text = format!("version: 1\n{text}\n");
            let read = read_files(&[(file, &*text)], PolicySettings::read);
            let errors = read.err().unwrap_or_default();
            assert_eq!(errors.is_empty(), wrong.is_empty(), "{text}: {errors}");
            assert!(errors.contains(wrong), "{text}: {errors}");
        },
    );
}
