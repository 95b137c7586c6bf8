//! Name resolution, with a nameserver on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::*;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use testkit::each_row_async;
use unified_proxy::upstream::Resolver;

use crate::loopback::*;

const CONTAINER: &str = "127.0.0.2";

fn zone() -> Nameserver {
    Nameserver::with_zone(answer)
}

fn answer(name: &str, kind: RecordType) -> Reply {
    match (name, kind) {
        ("both.example.com", RecordType::A) => {
            Reply::Records(vec![address_record(name, "192.0.2.1")])
        }
        ("both.example.com", RecordType::AAAA) => {
            Reply::Records(vec![address_record(name, "2001:db8::1")])
        }
        ("alias.example.com", RecordType::A) => Reply::Records(vec![
            cname_record(name, "middle.example.net"),
            cname_record("middle.example.net", "end.example.net"),
            address_record("end.example.net", "192.0.2.2"),
            address_record("stowaway.example.net", "192.0.2.66"),
        ]),
        ("big.example.com", RecordType::A) => {
            Reply::OverTcp(vec![address_record(name, "192.0.2.3")])
        }
        ("half.example.com", RecordType::A) => {
            Reply::Records(vec![address_record(name, "192.0.2.4")])
        }
        ("half.example.com", _) | ("never.example.com", _) => Reply::Silence,
        ("slow.example.com", RecordType::A) => Reply::After(
            Duration::from_millis(300),
            vec![address_record(name, "192.0.2.5")],
        ),
        ("fails.example.com", _) => Reply::Code(ResponseCode::ServFail),
        ("gone.example.com", _) => Reply::Code(ResponseCode::NXDomain),
        ("split.example.com", _) => Reply::Records(vec![cname_record(name, "target.example.net")]),
        ("target.example.net", RecordType::A) => {
            Reply::Records(vec![address_record(name, "192.0.2.7")])
        }
        _ => Reply::Records(Vec::new()),
    }
}

/// A tunnel that the chain has permitted, with the permit to resolve its host.
pub async fn permitted(chain: &Chain, host: &str) -> (OwnedFlow, ResolvePermit) {
    let host = Host::parse(host).unwrap();
    let client = Client {
        source: Some(Source::Address(CONTAINER.parse().unwrap())),
        peer: None,
    };
    let entry = Entry {
        pattern: HostPattern::Exactly(host.clone()),
        label: "test".into(),
        ports: vec![443],
        websocket: true,
        max_level: Level::Secret,
        origin: Origin {
            file: "allowlist.yaml".into(),
            line: 1,
        },
        grant: None,
    };
    let entry = Some(Arc::new(entry));
    let endpoint = Endpoint {
        scheme: Scheme::Https,
        host,
        port: 443,
    };
    let mut flow = FlowStart::new(Kind::Tunnel, client, Subject::Upstream(endpoint), entry).begin();
    let permit = chain.tunnel(&mut flow).await.unwrap();
    (flow, permit)
}

pub fn test_chain() -> Arc<Chain> {
    chain(&Arc::new(FakeContainers::at(&[CONTAINER])), &Log::default())
}

async fn lookup(resolver: &Resolver, host: &str) -> Result<Vec<String>, Denial> {
    let (_, permit) = permitted(&test_chain(), host).await;
    let found = resolver.lookup(&permit).await?;
    Ok(found.iter().map(SocketAddr::to_string).collect())
}

#[tokio::test]
async fn hosts_resolve_to_the_addresses_to_dial() {
    let nameserver = zone();
    let hosts = [
        ("fixed.example.com", "198.51.100.1", None),
        ("moved.example.com", "198.51.100.2", Some(8443)),
    ];
    let resolver = Resolver::new(&upstream(nameserver.address, &hosts)).unwrap();
    each_row_async(
        [
            (
                "both.example.com",
                &["192.0.2.1:443", "[2001:db8::1]:443"][..],
            ),
            ("alias.example.com", &["192.0.2.2:443"]),
            ("big.example.com", &["192.0.2.3:443"]),
            ("fixed.example.com", &["198.51.100.1:443"]),
            ("moved.example.com", &["198.51.100.2:8443"]),
            ("192.0.2.9", &["192.0.2.9:443"]),
            ("[2001:db8::9]", &["[2001:db8::9]:443"]),
        ],
        async |(host, expected)| {
            assert_eq!(lookup(&resolver, host).await.unwrap(), expected, "{host}");
        },
    )
    .await;
    assert!(
        nameserver.tcp_questions() > 0,
        "no query over TCP after a truncated response"
    );
}

/// Makes a network namespace with a link-local address, which needs root.
#[test]
fn a_nameserver_with_a_link_local_address_is_asked_over_udp_and_tcp() {
    let in_namespace = || {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            println!("left out: no network namespace ({error})");
            return;
        }
        for arguments in ["link set lo up", "-6 address add fe80::53/64 dev lo nodad"] {
            let ip = std::process::Command::new("ip")
                .args(arguments.split(' '))
                .status();
            assert!(ip.unwrap().success(), "{arguments}");
        }
        let nameserver = Nameserver::at("[fe80::53%1]:0".parse().unwrap(), answer);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let resolver = Resolver::new(&upstream(nameserver.address, &[])).unwrap();
            // Truncated over UDP, so it is asked again over TCP.
            let found = lookup(&resolver, "big.example.com").await.unwrap();
            assert_eq!(found, ["192.0.2.3:443"]);
            // The first answer has only a CNAME, so hickory-resolver asks over UDP.
            let found = lookup(&resolver, "split.example.com").await.unwrap();
            assert_eq!(found, ["192.0.2.7:443"]);
        });
        assert!(nameserver.tcp_questions() > 0);
    };
    std::thread::spawn(in_namespace).join().unwrap();
}

#[tokio::test]
async fn an_address_family_without_an_answer_does_not_delay_the_other() {
    let nameserver = zone();
    let resolver = Resolver::new(&upstream(nameserver.address, &[])).unwrap();
    let start = Instant::now();
    let found = lookup(&resolver, "half.example.com").await.unwrap();
    assert_eq!(found, ["192.0.2.4:443"]);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn resolution_errors_name_only_the_host_and_the_cause() {
    let nameserver = zone();
    let resolver = Resolver::new(&upstream(nameserver.address, &[])).unwrap();
    each_row_async(
        [
            (
                "gone.example.com",
                Code::UpstreamUnreachable,
                "no such name",
            ),
            (
                "empty.example.com",
                Code::UpstreamUnreachable,
                "it has no address",
            ),
            (
                "fails.example.com",
                Code::UpstreamUnreachable,
                "the nameserver failed",
            ),
            ("never.example.com", Code::UpstreamTimeout, "timed out"),
        ],
        async |(host, code, why)| {
            let start = Instant::now();
            let denial = lookup(&resolver, host).await.unwrap_err();
            assert_eq!(denial.code(), code, "{host}");
            assert_eq!(denial.sentence(), format!("Cannot resolve {host}: {why}"));
            assert!(
                start.elapsed() < Duration::from_secs(6),
                "{host} took {:?}",
                start.elapsed()
            );
        },
    )
    .await;
}

#[tokio::test]
async fn identical_queries_are_sent_once_and_their_answer_is_cached() {
    let nameserver = zone();
    let resolver = Resolver::new(&upstream(nameserver.address, &[])).unwrap();
    let (_, permit) = permitted(&test_chain(), "slow.example.com").await;
    let ask = || resolver.records(&permit, RecordType::A);
    let answers = futures_util::future::join_all((0..20).map(|_| ask())).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.as_ref().unwrap().records.len() == 1)
    );
    assert_eq!(nameserver.questions(), 1, "concurrent queries");
    ask().await.unwrap();
    assert_eq!(nameserver.questions(), 1, "a query for a cached name");
}

#[tokio::test]
async fn names_in_queries_have_random_letter_case() {
    let nameserver = zone();
    let resolver = Resolver::new(&upstream(nameserver.address, &[])).unwrap();
    for _ in 0..3 {
        lookup(&resolver, "both.example.com").await.unwrap();
        lookup(&resolver, "alias.example.com").await.unwrap();
    }
    let names = nameserver.spelled_over_udp();
    assert!(
        names.iter().any(|name| *name != name.to_lowercase()),
        "{names:?}"
    );
}

#[tokio::test]
async fn nxdomain_is_distinguished_from_nodata() {
    let nameserver = zone();
    let hosts = [("fixed.example.com", "198.51.100.1", None)];
    let resolver = Resolver::new(&upstream(nameserver.address, &hosts)).unwrap();
    each_row_async(
        [
            ("gone.example.com", RecordType::A, ResponseCode::NXDomain, 0),
            ("empty.example.com", RecordType::A, ResponseCode::NoError, 0),
            ("alias.example.com", RecordType::A, ResponseCode::NoError, 3),
            ("fixed.example.com", RecordType::A, ResponseCode::NoError, 1),
            (
                "fixed.example.com",
                RecordType::AAAA,
                ResponseCode::NoError,
                0,
            ),
            ("192.0.2.9", RecordType::A, ResponseCode::NXDomain, 0),
        ],
        async |(host, kind, code, records)| {
            let (_, permit) = permitted(&test_chain(), host).await;
            let answer = resolver.records(&permit, kind).await.unwrap();
            assert_eq!(
                (answer.code, answer.records.len()),
                (code, records),
                "{host}"
            );
        },
    )
    .await;
}
