//! What grants permit.

use super::*;

#[tokio::test]
async fn a_container_with_its_own_domains_asks_only_about_those_and_is_granted_no_others() {
    let mut registration = registration("web");
    registration.allowed_domains = Some(vec![HostPattern::parse("*.example.com").unwrap()]);
    let container = Arc::new(Container::new(registration));
    let ledger = Answers::of(&container);
    ledger.live.lock().push(to_host("granted.example.org:443"));
    let fixture = Fixture::with(container, ledger, ASK, "0s");
    let pending = Some(Code::ApprovalPending);
    assert_eq!(
        code(fixture.connect("files.example.com:443").await),
        pending
    );
    for outside in ["files.example.org:443", "granted.example.org:443"] {
        let denied = Some(Code::DomainNotAllowed);
        assert_eq!(code(fixture.connect(outside).await), denied, "{outside}");
    }
    assert_eq!(fixture.ledger.subjects(), ["files.example.com:443"]);
}

#[tokio::test]
async fn a_grant_permits_exactly_its_host_and_port_up_to_its_level_and_time() {
    let now = OffsetDateTime::now_utc();
    let ends = |seconds| Some(now + time::Duration::seconds(seconds));
    let granted = "files.example.com:443";
    for (authority, level, ends, passes) in [
        (granted, Level::Public, None, true),
        (granted, Level::Confidential, None, true),
        (granted, Level::Secret, None, false),
        (granted, Level::Public, ends(60), true),
        (granted, Level::Public, ends(-1), false),
        ("FILES.Example.COM.:443", Level::Public, None, true),
        ("files.example.com:8443", Level::Public, None, false),
        ("files.example.com:44", Level::Public, None, false),
        ("example.com:443", Level::Public, None, false),
        ("x.files.example.com:443", Level::Public, None, false),
        ("other.example.com:443", Level::Public, None, false),
        ("xfiles.example.com:443", Level::Public, None, false),
        ("fıles.example.com:443", Level::Public, None, false),
    ] {
        let fixture = Fixture::new(ASK);
        fixture.container.raise_level(level);
        fixture.ledger.live.lock().push(LiveGrant {
            ends,
            ..to_host(granted)
        });
        let permitted = fixture.connect(authority).await;
        if let Ok(flow) = &permitted {
            assert_eq!(flow.upstream_label(), "granted");
            assert!(flow.find_slot::<RestsOnGrant>().is_some());
            assert_eq!(flow.record().rule.as_deref(), Some(&*format!("grant {ID}")));
        }
        let row = format!("{authority} {level:?} {ends:?}");
        assert_eq!(permitted.is_ok(), passes, "{row}");
        // What the grant does not cover is another question.
        assert_eq!(fixture.ledger.asked.lock().is_empty(), passes, "{row}");
    }
}

#[tokio::test]
async fn a_grant_of_another_lease_permits_nothing() {
    let (before, after) = (container("web"), container("web"));
    let ledger = Answers::of(&before);
    ledger.live.lock().push(to_host("files.example.com:443"));
    let fixture = Fixture::with(after, ledger, ASK, "0s");
    let denied = code(fixture.connect("files.example.com:443").await);
    assert_eq!(denied, Some(Code::ApprovalPending));
}

#[tokio::test]
async fn rules_still_judge_a_granted_host() {
    let shut =
        "unknown_hosts: ask, rules: [{ name: shut, effect: deny, hosts: [\"*.example.com\"] }]";
    let fixture = Fixture::new(shut);
    fixture
        .ledger
        .live
        .lock()
        .push(to_host("files.example.com:443"));
    let denied = code(fixture.connect("files.example.com:443").await);
    assert_eq!(denied, Some(Code::RuleDenied));
}

#[tokio::test]
async fn only_a_grant_opens_dns_and_a_dns_question_asks_nobody() {
    let fixture = Fixture::new(ASK);
    let ask = async || {
        let mut flow = fixture.flow(Kind::Dns, &format!("{HOST}:0"));
        fixture
            .chain
            .dns_query(&mut flow, &mut query(HOST))
            .await
            .map(drop)
    };
    assert_eq!(code(ask().await), Some(Code::DomainNotAllowed));
    fixture
        .ledger
        .live
        .lock()
        .push(to_host("files.example.com:8443"));
    assert_eq!(code(ask().await), None);
    fixture.container.raise_level(Level::Secret);
    assert_eq!(code(ask().await), Some(Code::DomainNotAllowed));
    assert_eq!(fixture.ledger.subjects(), [""; 0]);
}
