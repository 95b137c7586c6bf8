//! Limits of the DNS server under floods, held connections and malformed packets, and its shutdown.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, ResponseCode};
use hickory_proto::rr::RecordType;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use tokio::net::TcpStream;
use tokio::time::timeout;
use unified_proxy::dns::DnsServer;

use crate::loopback::dns_fixture::*;
use crate::loopback::*;

#[tokio::test]
async fn responses_to_unknown_sources_are_rate_limited() {
    let fixture = DnsFixture::open().await;
    let socket = fixture.socket(UNKNOWN_SOURCE).await;
    let question = question("www.example.com", RecordType::A).to_vec().unwrap();
    let mut answers = 0;
    for _ in 0..40 {
        for _ in 0..25 {
            socket.send(&question).await.unwrap();
        }
        while receive_datagram(&socket, Duration::from_millis(2))
            .await
            .is_some()
        {
            answers += 1;
        }
    }
    assert!(
        (50..300).contains(&answers),
        "{answers} answers to 1000 packets"
    );
}

/// A thread floods the server with queries of one container, each for a new name that the
/// nameserver does not answer. Meanwhile, another container queries names that the nameserver
/// answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_from_one_container_does_not_delay_the_answers_of_another() {
    let fixture = DnsFixture::open().await;
    let flooding = Arc::new(AtomicBool::new(true));
    let sent = Arc::new(AtomicU32::new(0));
    let flood = std::thread::spawn({
        let (flooding, sent, address) = (flooding.clone(), sent.clone(), fixture.address);
        move || {
            let socket = std::net::UdpSocket::bind((ONE, 0)).unwrap();
            while flooding.load(Ordering::SeqCst) {
                for _ in 0..100 {
                    let n = sent.fetch_add(1, Ordering::SeqCst);
                    let name = format!("n{n}.never.example.com");
                    let question = question(&name, RecordType::A).to_vec().unwrap();
                    let _ = socket.send_to(&question, address);
                }
                // The unanswered questions of a second fill the container's share of waiting ones.
                // Questions without a pause would only take the CPU from the proxy.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    while sent.load(Ordering::SeqCst) < 4_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let socket = fixture.socket(OTHER).await;
    let mut took = Vec::new();
    for n in 0..50 {
        let name = format!("w{}.example.com", n % 10);
        let start = Instant::now();
        let answer = ask_message(&socket, &question(&name, RecordType::A)).await;
        assert_eq!(answer.response_code, ResponseCode::NoError, "question {n}");
        took.push(start.elapsed());
    }
    // The median, since other load on the machine delays some answers.
    took.sort_unstable();
    assert!(took[25] < Duration::from_millis(500), "{took:?}");
    flooding.store(false, Ordering::SeqCst);
    flood.join().unwrap();
}

#[tokio::test]
async fn cached_names_are_answered_while_the_limit_on_waiting_queries_is_reached() {
    let fixture = DnsFixture::open().await;
    let (flood, socket) = (fixture.socket(ONE).await, fixture.socket(ONE).await);
    let known = question("w1.example.com", RecordType::A);
    ask_message(&socket, &known).await;
    for n in 0..100 {
        let name = format!("n{n}.never.example.com");
        let question = question(&name, RecordType::A).to_vec().unwrap();
        flood.send(&question).await.unwrap();
    }
    // A query that exceeds the limit on waiting queries is refused at once, so the limit is reached
    // when the first response arrives.
    assert!(
        receive_datagram(&flood, Duration::from_secs(2))
            .await
            .is_some()
    );
    let new = ask_message(&socket, &question("w2.example.com", RecordType::A)).await;
    assert_eq!(new.response_code, ResponseCode::Refused);
    let answer = ask_message(&socket, &known).await;
    assert_eq!(answer.response_code, ResponseCode::NoError);
}

#[tokio::test]
async fn questions_over_tcp_are_answered_in_their_order() {
    let fixture = DnsFixture::open().await;
    let mut stream = fixture.connect(ONE).await;
    let names = ["slow.example.com", "www.example.com", "www.example.org"];
    for name in names {
        send(
            &mut stream,
            &question(name, RecordType::A).to_vec().unwrap(),
        )
        .await;
    }
    for name in names {
        let answer = receive(&mut stream).await.unwrap();
        assert_eq!(answer.queries[0].name().to_ascii(), format!("{name}."));
    }
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(SOON, receive(stream)).await, Ok(Err(_)))
}

#[tokio::test]
async fn one_container_cannot_take_all_connections() {
    let fixture = DnsFixture::open().await;
    let mut kept = Vec::new();
    for _ in 0..32 {
        kept.push(fixture.connect(ONE).await);
    }
    assert!(is_closed(&mut fixture.connect(ONE).await).await);

    let question = question("www.example.com", RecordType::A).to_vec().unwrap();
    for mut stream in [fixture.connect(OTHER).await, kept.remove(0)] {
        send(&mut stream, &question).await;
        assert_eq!(receive(&mut stream).await.unwrap().answers.len(), 1);
    }
}

#[tokio::test]
async fn connections_end_with_the_lease() {
    let fixture = DnsFixture::open().await;
    let mut stream = fixture.connect(ONE).await;
    send(
        &mut stream,
        &question("www.example.com", RecordType::A).to_vec().unwrap(),
    )
    .await;
    receive(&mut stream).await.unwrap();
    fixture.containers.get(ONE).end();
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn shutdown_answers_pending_queries() {
    let fixture = DnsFixture::open().await;
    let question = question("slow.example.com", RecordType::A)
        .to_vec()
        .unwrap();
    let socket = fixture.socket(ONE).await;
    socket.send(&question).await.unwrap();
    let mut stream = fixture.connect(OTHER).await;
    send(&mut stream, &question).await;
    let mut idle = fixture.connect(OTHER).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    fixture.shutdown.cancel();
    assert!(receive_datagram(&socket, SOON).await.is_some());
    assert!(receive(&mut stream).await.is_ok());
    assert!(is_closed(&mut idle).await);
    timeout(SOON, fixture.served).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_listener_that_cannot_be_opened_is_named() {
    let taken = DnsServer::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = taken.local_addresses().unwrap()[0];
    let error = DnsServer::bind(&[address]).err().unwrap().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
}

/// Random bytes, or a valid query with bytes changed, cut off or appended.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let anything = prop::collection::vec(any::<u8>(), 0..700);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let tail = prop::collection::vec(any::<u8>(), 0..40);
    let nearly = (changes, tail, 0..12_usize).prop_map(|(changes, tail, cut)| {
        let mut question = question("www.example.com", RecordType::A);
        question.set_edns(Edns::new());
        let mut packet = question.to_vec().unwrap();
        for (at, value) in changes {
            let at = at.index(packet.len());
            packet[at] = value;
        }
        packet.truncate(packet.len() - cut);
        packet.extend(tail);
        packet
    });
    prop_oneof![anything, nearly]
}

#[test]
fn no_packet_stops_the_server_and_no_packet_of_an_unknown_source_is_amplified() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (fixture, known, unknown) = runtime.block_on(async {
        let fixture = DnsFixture::open().await;
        let (known, unknown) = (
            fixture.socket(ONE).await,
            fixture.socket(UNKNOWN_SOURCE).await,
        );
        (fixture, known, unknown)
    });
    let cases = Cases {
        failure_persistence: None,
        ..Cases::with_cases(400)
    };
    // A response may arrive late. Each packet has its number as id, so the response shows to which
    // packet it belongs.
    let lengths = RefCell::new(Vec::new());
    let run = TestRunner::new(cases).run(&packets(), |mut packet| {
        let id = (lengths.borrow().len() as u16).to_be_bytes();
        packet.iter_mut().zip(id).for_each(|(byte, id)| *byte = id);
        lengths.borrow_mut().push(packet.len());
        runtime.block_on(async {
            unknown.send(&packet).await.unwrap();
            if let Some(answer) = receive_datagram(&unknown, Duration::from_millis(2)).await {
                let id = u16::from_be_bytes([answer[0], answer[1]]);
                prop_assert!(answer.len() <= lengths.borrow()[usize::from(id)]);
                prop_assert_eq!(&answer[6..12], [0; 6], "the response has records");
            }
            known.send(&packet).await.unwrap();
            Ok(())
        })
    });
    run.unwrap();
    runtime.block_on(async {
        while receive_datagram(&known, Duration::from_millis(50))
            .await
            .is_some()
        {}
        let answer = ask_message(&known, &question("www.example.com", RecordType::A)).await;
        assert_eq!(answer.answers.len(), 1, "the server stopped answering");
        fixture.shutdown.cancel();
        timeout(Duration::from_secs(6), fixture.served)
            .await
            .unwrap()
            .unwrap();
    });
}
