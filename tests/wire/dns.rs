//! DNS over UDP and TCP, queried with dig and with raw datagrams.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use serde_json::json;
use testkit::each_row;

use crate::support::{Nameserver, Origin, Proxy, SECOND, SOON, Setup, UNKNOWN_SOURCE};

const SANDBOX: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Stands in for a public address: the configuration lists 127.0.0.0/8 under `allow_private`, so
/// the proxy keeps this address in answers.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(127, 1, 2, 3);

/// How long to wait for a response before concluding that the proxy sends none.
const SILENCE: Duration = Duration::from_millis(300);

fn start(change: impl FnOnce(&mut Setup)) -> (Nameserver, Proxy) {
    let names: &[(&str, &[Ipv4Addr])] = &[
        ("a.example.org", &[PUBLIC]),
        ("b.example.org", &[PUBLIC]),
        ("long.example.org", &[PUBLIC]),
        ("inside.example.org", &[Ipv4Addr::new(10, 0, 0, 1)]),
        (
            "mixed.example.org",
            &[Ipv4Addr::new(192, 168, 0, 1), PUBLIC],
        ),
        ("blocked.example.net", &[PUBLIC]),
    ];
    let nameserver = Nameserver::start(names);
    let mut setup = Setup::new(&Origin::start());
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    setup.allow("*.example.org");
    setup.containers.push(("127.0.0.2".into(), "second".into()));
    change(&mut setup);
    (nameserver, setup.start())
}

#[test]
fn a_listed_name_resolves_over_udp_and_tcp() {
    let (_nameserver, proxy) = start(|_| ());
    each_row(["+notcp", "+tcp"], |transport| {
        let answer = proxy.dig(SANDBOX, &["A.Example.ORG", transport]);
        assert!(answer.contains("status: NOERROR"), "{answer}");
        assert!(answer.contains("\t127.1.2.3\n"), "{answer}");
        // The name in the response has the letter case of the query. Clients that use DNS 0x20
        // encoding check this.
        assert!(answer.contains("A.Example.ORG."), "{answer}");
    });
    assert!(proxy.metric("proxy_dns_queries_total", &["type=\"A\""]) >= 2.0);
}

#[test]
fn a_name_that_is_not_listed_gets_nxdomain_and_is_not_looked_up() {
    let (nameserver, proxy) = start(|_| ());
    let answer = proxy.dig(SANDBOX, &["blocked.example.net"]);
    assert!(answer.contains("status: NXDOMAIN"), "{answer}");
    assert_eq!(nameserver.asked(), Vec::<String>::new());
    proxy.audited(
        json!({ "kind": "dns", "host": "blocked.example.net", "code": "domain_not_allowed" }),
    );
}

#[test]
fn an_unknown_source_is_refused() {
    let (nameserver, proxy) = start(|_| ());
    each_row(["+notcp", "+tcp"], |transport| {
        let answer = proxy.dig(UNKNOWN_SOURCE, &["a.example.org", transport]);
        assert!(answer.contains("status: REFUSED"), "{answer}");
    });
    assert_eq!(nameserver.asked(), Vec::<String>::new());
    let line = proxy.audited(json!({ "kind": "dns", "code": "unknown_source" }));
    assert_eq!(
        (&line["client"], &line["status"], &line["container_id"]),
        (&json!(UNKNOWN_SOURCE), &json!(5), &json!(null))
    );
    let denied = |name, label| proxy.metric(name, &[label]);
    assert_eq!(denied("proxy_dns_queries_total", "outcome=\"denied\""), 2.0);
    assert_eq!(
        denied("proxy_denials_total", "code=\"unknown_source\""),
        2.0
    );
}

#[test]
fn malformed_queries_are_audited_for_their_container() {
    let (_nameserver, proxy) = start(|_| ());
    each_row(
        [
            // No question: FORMERR.
            (&b"\x12\x34\x01\0\0\0\0\0\0\0\0\0"[..], 1),
            // Class CHAOS: REFUSED.
            (b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x03", 5),
            // `a_` is not a valid host name: NXDOMAIN.
            (b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x02a_\0\0\x01\0\x01", 3),
        ],
        |(message, status)| {
            let answer = ask_raw(&proxy, message, SOON).unwrap();
            assert_eq!(answer[3] & 15, status, "{message:?}");
            proxy.audited(json!({
                "kind": "dns", "container_id": "sandbox", "status": status,
                "outcome": "denied", "code": "malformed_request", "bytes_in": message.len(),
            }));
        },
    );
}

#[test]
fn unsupported_types_get_nodata_for_listed_names_and_nxdomain_for_others() {
    let (nameserver, proxy) = start(|_| ());
    each_row(
        ["HTTPS", "SVCB", "TXT", "MX", "NS", "SRV", "PTR", "NULL"],
        |record_type| {
            let answer = proxy.dig(SANDBOX, &["a.example.org", record_type]);
            assert!(
                answer.contains("status: NOERROR"),
                "{record_type}: {answer}"
            );
            assert!(answer.contains("ANSWER: 0"), "{record_type}: {answer}");
            let answer = proxy.dig(SANDBOX, &["blocked.example.net", record_type]);
            assert!(
                answer.contains("status: NXDOMAIN"),
                "{record_type}: {answer}"
            );
        },
    );
    assert_eq!(nameserver.asked(), Vec::<String>::new());
}

#[test]
fn queries_with_type_axfr_type_any_another_class_or_two_questions_get_no_records() {
    let (nameserver, proxy) = start(|_| ());
    each_row(
        [
            &["a.example.org", "ANY", "+notcp"][..],
            &["a.example.org", "AXFR"],
            &["version.bind", "TXT", "CH"],
            &["a.example.org", "A", "HS"],
        ],
        |question| {
            let answer = proxy.dig(SANDBOX, question);
            assert!(
                !answer.contains("status: NOERROR"),
                "{question:?}: {answer}"
            );
            assert!(!answer.contains("127.1.2.3"), "{question:?}: {answer}");
        },
    );
    let name = b"\x01a\x07example\x03org\0\0\x01\0\x01";
    let two = [b"\x12\x34\x01\0\0\x02\0\0\0\0\0\0", &name[..], &name[..]].concat();
    let code = ask_raw(&proxy, &two, SILENCE).map(|answer| answer[3] & 15);
    assert!(
        code.is_none_or(|code| code != 0),
        "two questions got {code:?}"
    );
    assert_eq!(nameserver.asked(), Vec::<String>::new());
}

#[test]
fn malformed_messages_never_get_noerror_and_later_queries_are_answered() {
    let (_nameserver, proxy) = start(|_| ());
    each_row(
        [
            &b""[..],
            b"\x12",
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0",
            // A compressed name whose pointer refers to itself.
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\xc0\x0c\0\x01\0\x01",
            // A response (QR bit set) instead of a query.
            b"\x12\x34\x81\x80\0\x01\0\0\0\0\0\0\x01a\x07example\x03org\0\0\x01\0\x01",
        ],
        |message| {
            let code = ask_raw(&proxy, message, SILENCE).map(|answer| answer[3] & 15);
            assert!(
                code.is_none_or(|code| code != 0),
                "{message:?} got {code:?}"
            );
        },
    );
    let answer = proxy.dig(SANDBOX, &["a.example.org"]);
    assert!(answer.contains("127.1.2.3"), "{answer}");
}

#[test]
fn addresses_in_special_ranges_are_dropped_from_answers() {
    let (_nameserver, proxy) = start(|_| ());
    let answer = proxy.dig(SANDBOX, &["inside.example.org"]);
    assert!(
        answer.contains("status: NOERROR") && answer.contains("ANSWER: 0"),
        "{answer}"
    );
    let answer = proxy.dig(SANDBOX, &["mixed.example.org"]);
    assert!(
        answer.contains("127.1.2.3") && !answer.contains("192.168"),
        "{answer}"
    );
}

#[test]
fn the_proxy_retries_a_truncated_upstream_answer_over_tcp() {
    // The test nameserver sets TC over UDP for names that start with `long.`.
    let (_nameserver, proxy) = start(|_| ());
    let answer = proxy.dig(SANDBOX, &["long.example.org"]);
    assert!(answer.contains("127.1.2.3"), "{answer}");
}

#[test]
fn a_container_over_its_budget_of_queries_is_refused_and_others_are_not() {
    let (_nameserver, proxy) = start(|setup| {
        setup.proxy["dns"]["queries_per_minute"] = 3.into();
    });
    let refused = (0..6)
        .map(|_| proxy.dig(SANDBOX, &["a.example.org"]))
        .filter(|answer| answer.contains("status: REFUSED"));
    assert!(refused.count() >= 2);
    let answer = proxy.dig(SECOND, &["a.example.org"]);
    assert!(answer.contains("status: NOERROR"), "{answer}");
}

#[test]
fn dns_queries_connects_and_plain_requests_share_one_budget_of_distinct_names() {
    let (_nameserver, proxy) = start(|setup| {
        setup.proxy["dns"]["distinct_names_per_minute"] = 3.into();
    });
    for number in 0..3 {
        let (_, _) = proxy.connect(&format!("x{number}.example.org:443"));
        proxy.get(&format!("http://x{number}.example.org/"), &[]);
    }
    let answer = proxy.dig(SANDBOX, &["a.example.org"]);
    assert!(answer.contains("status: REFUSED"), "{answer}");
    let answer = proxy.dig(SECOND, &["a.example.org"]);
    assert!(answer.contains("status: NOERROR"), "{answer}");
}

#[test]
fn a_flood_from_an_unknown_source_does_not_starve_a_container() {
    let (_nameserver, proxy) = start(|_| ());
    let flood = UdpSocket::bind((UNKNOWN_SOURCE, 0)).unwrap();
    let name = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\x03org\0\0\x01\0\x01";
    for _ in 0..20_000 {
        let _ = flood.send_to(name, proxy.dns);
    }
    let answer = proxy.dig(SANDBOX, &["a.example.org", "+tries=3"]);
    assert!(answer.contains("127.1.2.3"), "{answer}");
}

#[test]
fn an_expired_lease_is_refused_over_udp_and_tcp() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let transports = [
        (Ipv4Addr::new(127, 0, 0, 20), "notcp"),
        (Ipv4Addr::new(127, 0, 0, 21), "tcp"),
    ];
    for (address, transport) in transports {
        let id = format!("brief-{transport}");
        proxy.register_for(Duration::from_secs(2), address, &id);
    }
    // The leases expire after 2 s, and the registry ends expired leases once a second. After this
    // pause, it has ended them.
    std::thread::sleep(Duration::from_millis(3500));
    each_row(transports, |(address, transport)| {
        let answer = proxy.dig(address, &["plain.example.com", &format!("+{transport}")]);
        assert!(answer.contains("status: REFUSED"), "{answer}");
        proxy.audited(json!({ "client": address, "code": "registration_expired" }));
    });
}

/// Sends `message` unchanged over UDP. Returns `None` if no answer of at least 4 bytes arrives
/// within `within`.
fn ask_raw(proxy: &Proxy, message: &[u8], within: Duration) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind((SANDBOX, 0)).unwrap();
    socket.set_read_timeout(Some(within)).unwrap();
    socket.send_to(message, proxy.dns).unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).ok()?;
    (length >= 4).then(|| buffer[..length].to_vec())
}
