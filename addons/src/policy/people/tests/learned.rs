//! Hosts that people approved for every container.

use super::*;
use crate::contract::{Entry, Host};
use crate::policy::parse_entry;

const DENY: &str = "unknown_hosts: deny";

fn learned(host: &str, port: u16, max_level: Level) -> LearnedHost {
    LearnedHost {
        host: Host::parse(host).unwrap(),
        port,
        max_level,
        author: "uid 1000 (ann)".into(),
        time: OffsetDateTime::UNIX_EPOCH,
        question: ApprovalId::parse(ID).unwrap(),
    }
}

fn knowing(container: Arc<Container>, policy: &str) -> Fixture {
    let ledger = Answers::of(&container);
    ledger.learned.lock().extend([
        learned(HOST, 443, Level::Confidential),
        learned(HOST, 8443, Level::Public),
    ]);
    Fixture::with(container, ledger, policy, "0s")
}

#[tokio::test]
async fn every_container_may_reach_a_learned_host_at_its_port_up_to_its_level() {
    for (authority, level, passes) in [
        ("files.example.com:443", Level::Public, true),
        ("FILES.Example.COM.:443", Level::Confidential, true),
        ("files.example.com:443", Level::Secret, false),
        ("files.example.com:8443", Level::Public, true),
        ("files.example.com:8443", Level::Confidential, false),
        ("files.example.com:22", Level::Public, false),
        ("x.files.example.com:443", Level::Public, false),
        ("example.com:443", Level::Public, false),
    ] {
        for (policy, denied) in [(DENY, Code::DomainNotAllowed), (ASK, Code::ApprovalPending)] {
            let fixture = knowing(container("another"), policy);
            fixture.container.raise_level(level);
            let row = format!("{authority} {level:?} {policy}");
            match fixture.connect(authority).await {
                Ok(flow) => {
                    assert!(passes, "{row}");
                    assert_eq!(flow.upstream_label(), "granted");
                    assert_eq!(flow.record().rule.as_deref(), Some(&*format!("grant {ID}")));
                    assert!(flow.find_slot::<RestsOnGrant>().is_some());
                }
                Err(denial) => {
                    assert!(!passes, "{row}");
                    assert_eq!(denial.code(), denied, "{row}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_dns_question_for_a_learned_host_is_answered() {
    let fixture = knowing(container("web"), DENY);
    let dns = async |host: &str| {
        let mut flow = fixture.flow(Kind::Dns, &format!("{host}:0"));
        code(fixture.chain.dns_query(&mut flow, &mut query(host)).await)
    };
    assert_eq!(dns(HOST).await, None);
    assert_eq!(
        dns("x.files.example.com").await,
        Some(Code::DomainNotAllowed)
    );
}

#[tokio::test]
async fn what_excludes_a_host_excludes_a_learned_one() {
    let mut registration = registration("web");
    registration.allowed_domains = Some(vec![HostPattern::parse("*.example.org").unwrap()]);
    let narrowed = Arc::new(Container::new(registration));
    let shut = "rules: [{ name: shut, effect: deny, hosts: [\"*.example.com\"] }]";
    for (container, policy, denied) in [
        (narrowed, DENY, Code::DomainNotAllowed),
        (container("web"), shut, Code::RuleDenied),
    ] {
        let fixture = knowing(container, policy);
        let judged = fixture.connect("files.example.com:443").await;
        assert_eq!(code(judged), Some(denied), "{policy}");
    }
    // Nobody could have approved these.
    for host in [
        "com",
        "github.io",
        "localhost",
        "93.184.216.34",
        "db.internal",
    ] {
        let fixture = Fixture::new(DENY);
        let entry = learned(host, 443, Level::Secret);
        fixture.ledger.learned.lock().push(entry);
        assert!(
            fixture.connect(&format!("{host}:443")).await.is_err(),
            "{host}"
        );
    }
}

#[tokio::test]
async fn the_operators_own_entry_of_a_host_counts_alone() {
    let fixture = knowing(container("web"), DENY);
    let own = Entry {
        ports: vec![80],
        max_level: Level::Public,
        ..parse_entry("*.example.com").unwrap()
    };
    let list = [(own.pattern.clone(), Arc::new(own))].into_iter().collect();
    let endpoint = fixture.flow(Kind::Tunnel, "files.example.com:443");
    let endpoint = endpoint.endpoint().unwrap().clone();
    let client = start_of(&fixture.container, Kind::Tunnel, HOST).client;
    let chain = fixture.chain.with_allowlist(Arc::new(list));
    let mut start = chain.to_upstream(Kind::Tunnel, client, endpoint);
    start.principal = Some(Arc::clone(&fixture.container).into());
    let judged = chain.tunnel(&mut start.begin()).await;
    assert_eq!(code(judged), Some(Code::PortNotAllowed));
}
