//! Responses of the DNS server to `dig` and to raw messages.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};
use testkit::each_row_async;

use crate::loopback::dns_fixture::*;
use crate::loopback::*;

#[tokio::test(flavor = "multi_thread")]
async fn dig_gets_the_answers_that_the_chain_permits_over_udp_and_tcp() {
    let fixture = DnsFixture::open_with_types(&[RecordType::HTTPS, RecordType::SVCB]).await;
    each_row_async(
        [
            ("www.example.com A", "NOERROR", &["192.0.2.1"][..]),
            ("www.example.com AAAA", "NOERROR", &[]),
            ("WwW.eXample.COM A", "NOERROR", &["192.0.2.1"]),
            (
                "alias.example.com A",
                "NOERROR",
                &["end.example.net.", "192.0.2.3"],
            ),
            (
                "alias.example.com AAAA",
                "NOERROR",
                &["end.example.net.", "2001:db8::3"],
            ),
            ("alias.example.com CNAME", "NOERROR", &["end.example.net."]),
            ("fixed.example.com A", "NOERROR", &["198.51.100.1"]),
            ("fixed.example.com AAAA", "NOERROR", &[]),
            ("private.example.com A", "NOERROR", &["192.0.2.2"]),
            ("private.example.com AAAA", "NOERROR", &[]),
            ("www.example.com TXT", "NOERROR", &[]),
            ("www.example.com MX", "NOERROR", &[]),
            ("www.example.com TYPE65400", "NOERROR", &[]),
            ("www.example.com HTTPS", "NOERROR", &[]),
            ("www.example.com SVCB", "NOERROR", &[]),
            ("gone.example.com A", "NXDOMAIN", &[]),
            ("fails.example.com A", "SERVFAIL", &[]),
            ("www.example.org A", "NXDOMAIN", &[]),
            ("example.com A", "NXDOMAIN", &[]),
            ("_dmarc.example.com TXT", "NXDOMAIN", &[]),
            ("127.1 A", "NXDOMAIN", &[]),
            ("1.0.0.127.in-addr.arpa PTR", "NXDOMAIN", &[]),
            (". NS", "REFUSED", &[]),
            ("www.example.com ANY", "REFUSED", &[]),
            ("-c CH version.bind TXT", "REFUSED", &[]),
            ("limited.example.com A", "REFUSED", &[]),
            ("broken.example.com A", "SERVFAIL", &[]),
            ("panics.example.com A", "SERVFAIL", &[]),
            ("+noedns www.example.com A", "NOERROR", &["192.0.2.1"]),
            (
                "+edns=1 +noednsnegotiation www.example.com A",
                "BADVERS",
                &[],
            ),
            ("+noedns +opcode=notify www.example.com A", "NOTIMP", &[]),
        ],
        async |(arguments, status, answers)| {
            for transport in ["+notcp", "+tcp"] {
                let arguments = format!("{transport} {arguments}");
                let answer = fixture.dig(ONE, &arguments).await;
                let answers: Vec<_> = answers.iter().map(|text| (*text).to_owned()).collect();
                assert_eq!(answer, (status.to_owned(), answers), "{arguments}");
            }
        },
    )
    .await;
    let transfer = fixture.dig(ONE, "www.example.com AXFR").await;
    assert_eq!(transfer.0, "none", "a transfer was answered");
}

#[tokio::test]
async fn answers_echo_id_and_question_and_have_a_short_ttl() {
    let fixture = DnsFixture::open().await;
    let socket = fixture.socket(ONE).await;
    let mut question = question("wWw.ExamPLE.com", RecordType::A);
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    question.set_edns(edns);
    let answer = ask_message(&socket, &question).await;
    assert_eq!(answer.id, 4711);
    assert_eq!(answer.message_type, MessageType::Response);
    assert!(answer.recursion_available && answer.recursion_desired);
    assert!(answer.queries[0].name().eq_case(question.queries[0].name()));
    assert_eq!(answer.edns.as_ref().unwrap().max_payload(), 1232);
    assert!(
        answer.answers[0].ttl <= 300,
        "a longer TTL delays changes of the allowlist"
    );
    assert_eq!(answer.answers[0].name, *question.queries[0].name());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_does_not_fit_a_datagram_is_truncated_and_complete_over_tcp() {
    let fixture = DnsFixture::open().await;
    let socket = fixture.socket(ONE).await;
    let mut big = question("big.example.com", RecordType::A);
    for (payload, room) in [(None, 512), (Some(4096), 1232)] {
        if let Some(payload) = payload {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            big.set_edns(edns);
        }
        let answer = ask(&socket, &big.to_vec().unwrap()).await.unwrap();
        assert!(answer.len() <= room, "{} bytes", answer.len());
        let answer = Message::from_vec(&answer).unwrap();
        assert!(answer.truncation && answer.answers.is_empty());
        assert_eq!(answer.edns.is_some(), payload.is_some());
    }
    let (status, answers) = fixture.dig(ONE, "big.example.com A").await;
    assert_eq!((status.as_str(), answers.len()), ("NOERROR", 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_sources_are_refused_before_parsing() {
    let fixture = DnsFixture::open().await;
    for transport in ["+notcp", "+tcp"] {
        let arguments = format!("{transport} www.example.com A");
        assert_eq!(fixture.dig(UNKNOWN_SOURCE, &arguments).await.0, "REFUSED");
        assert_eq!(fixture.dig(ONE, &arguments).await.0, "NOERROR");
        fixture.containers.broken.store(true, Ordering::SeqCst);
        assert_eq!(fixture.dig(ONE, &arguments).await.0, "SERVFAIL");
        fixture.containers.broken.store(false, Ordering::SeqCst);
    }
    let ended = fixture.ended();
    let flows: Vec<_> = ended
        .iter()
        .map(|flow| (flow.host.as_str(), flow.status, flow.outcome))
        .collect();
    let of_each = [
        ("", 5, "denied"),
        ("www.example.com", 0, "ok"),
        ("", 2, "failed"),
    ];
    assert_eq!(
        flows,
        [of_each, of_each].concat(),
        "flows of questions that were not parsed have no host"
    );

    let mut nonsense = question("www.example.com", RecordType::A).to_vec().unwrap();
    nonsense.truncate(15);
    let socket = fixture.socket(UNKNOWN_SOURCE).await;
    let answer = ask(&socket, &nonsense).await.unwrap();
    assert_eq!(answer[3] & 0x0f, 5, "refused before the packet is parsed");
}

#[tokio::test]
async fn messages_with_the_response_flag_are_never_answered() {
    let fixture = DnsFixture::open().await;
    each_row_async([ONE, UNKNOWN_SOURCE], async |source| {
        let socket = fixture.socket(source).await;
        let mut message = question("www.example.com", RecordType::A);
        message.metadata.message_type = MessageType::Response;
        socket.send(&message.to_vec().unwrap()).await.unwrap();
        assert_eq!(
            receive_datagram(&socket, Duration::from_millis(200)).await,
            None
        );
    })
    .await;
}

#[tokio::test]
async fn malformed_questions_are_form_errors_and_questions_of_other_classes_are_refused() {
    let fixture = DnsFixture::open().await;
    let socket = fixture.socket(ONE).await;
    let plain = question("www.example.com", RecordType::A).to_vec().unwrap();
    let mut two = question("www.example.com", RecordType::A);
    two.add_query(two.queries[0].clone());
    let mut pointing = plain.clone();
    pointing.splice(12.., [0xc0, 12, 0, 1, 0, 1]);
    let mut claiming = plain.clone();
    claiming[4..12].fill(0xff);
    let mut half_an_option = plain.clone();
    half_an_option[11] = 1;
    half_an_option.extend_from_slice(b"\0\0\x29\x10\0");
    each_row_async(
        [
            ("two questions", two.to_vec().unwrap()),
            ("a name that points at itself", pointing),
            ("records that are not there", claiming),
            ("half an OPT record", half_an_option),
            ("a cut question", plain[..20].to_vec()),
        ],
        async |(what, packet)| {
            let answer = ask(&socket, &packet).await.expect(what);
            assert_eq!(answer[3] & 0x0f, 1, "{what}");
            assert!(answer.len() <= packet.len(), "{what}");
        },
    )
    .await;
    let mut other_class = question("www.example.com", RecordType::A);
    other_class.queries[0].set_query_class(DNSClass::HS);
    let answer = ask_message(&socket, &other_class).await;
    assert_eq!(answer.response_code, ResponseCode::Refused);
    assert_eq!(fixture.nameserver.questions(), 0);
}

#[tokio::test]
async fn every_flow_ends_once_with_its_response_code() {
    let fixture = DnsFixture::open().await;
    let socket = fixture.socket(ONE).await;
    let asked = [
        ("www.example.com", RecordType::A, 0, "ok"),
        ("www.example.com", RecordType::TXT, 0, "ok"),
        ("gone.example.com", RecordType::AAAA, 3, "ok"),
        ("fails.example.com", RecordType::A, 2, "failed"),
        ("www.example.org", RecordType::A, 3, "denied"),
        ("limited.example.com", RecordType::A, 5, "denied"),
        ("panics.example.com", RecordType::A, 2, "failed"),
    ];
    for (name, kind, ..) in asked {
        ask_message(&socket, &question(name, kind)).await;
    }
    let expected = asked.map(|(host, kind, status, outcome)| Ended {
        host: host.to_owned(),
        method: Some(kind.to_string()),
        status,
        outcome,
    });
    assert_eq!(fixture.ended(), expected);
}

#[tokio::test]
async fn denied_names_and_types_are_not_sent_to_the_nameserver() {
    let fixture = DnsFixture::open().await;
    let socket = fixture.socket(ONE).await;
    for name in [
        "secret.example.org",
        "limited.example.com",
        "broken.example.com",
    ] {
        ask_message(&socket, &question(name, RecordType::A)).await;
    }
    ask_message(&socket, &question("www.example.com", RecordType::TXT)).await;
    assert_eq!(fixture.nameserver.questions(), 0);
}
