//! DNS messages that arrived over HTTP, as the ingress passes them to the DNS service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Code, Container, Denial, Principal, Source};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::time::timeout;
use unified_proxy::dns::DnsClient;

use crate::loopback::dns_fixture::*;

fn dns_client(source: &str) -> DnsClient {
    SocketAddr::new(source.parse().unwrap(), 0).into()
}

/// A client on a connection that is bound to the container's lease, with an unregistered source
/// address.
fn bound(container: &Arc<Container>) -> DnsClient {
    DnsClient {
        principal: Some(Principal::from(Arc::clone(container))),
        ..dns_client(UNKNOWN_SOURCE)
    }
}

async fn ask(fixture: &DnsFixture, name: &str, dns_client: DnsClient) -> Result<Message, Denial> {
    let question = question(name, RecordType::A).to_vec().unwrap();
    let answer = fixture.service.answer(&question, dns_client).await?;
    Ok(Message::from_vec(&answer).unwrap())
}

async fn code(fixture: &DnsFixture, name: &str, dns_client: DnsClient) -> ResponseCode {
    ask(fixture, name, dns_client).await.unwrap().response_code
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_longer_than_a_datagram_arrives_whole() {
    let fixture = DnsFixture::open().await;
    let answer = ask(&fixture, "big.example.com", dns_client(ONE))
        .await
        .unwrap();
    assert!(!answer.truncation);
    assert_eq!(answer.answers.len(), 200);
}

#[tokio::test]
async fn the_lease_of_the_connection_identifies_the_client_with_any_source_address() {
    let fixture = DnsFixture::open().await;
    let container = fixture.containers.get(ONE);
    let known = code(&fixture, "www.example.com", bound(container)).await;
    assert_eq!(known, ResponseCode::NoError);
    let unknown = code(&fixture, "www.example.com", dns_client(UNKNOWN_SOURCE)).await;
    assert_eq!(unknown, ResponseCode::Refused);
}

#[tokio::test]
async fn a_question_over_a_containers_socket_without_a_lease_is_refused() {
    let fixture = DnsFixture::open().await;
    let mut dns_client = dns_client(ONE);
    dns_client.client.source = Some(Source::Listener(fixture.containers.get(ONE).id.clone()));
    let refused = code(&fixture, "www.example.com", dns_client).await;
    assert_eq!(refused, ResponseCode::Refused);
    assert!(fixture.nameserver.asked().is_empty());
}

#[tokio::test]
async fn questions_over_the_rate_are_denied_with_a_retry_delay() {
    let fixture = DnsFixture::open().await;
    let container = fixture.containers.get(ONE);
    let mut denied = None;
    for _ in 0..50_000 {
        denied = ask(&fixture, "www.example.org", bound(container))
            .await
            .err();
        if denied.is_some() {
            break;
        }
    }
    let denied = denied.expect("a denial");
    let told = (
        denied.code(),
        denied.code().status(),
        denied.retry_after_seconds(),
    );
    assert_eq!(told, (Code::RateLimited, 429, Some(1)));
    assert_eq!(denied.to_json()["container_id"], container.id.as_str());
    let other = code(&fixture, "www.example.org", dns_client(OTHER)).await;
    assert_eq!(other, ResponseCode::NXDomain);
}

#[tokio::test]
async fn an_abandoned_question_ends_as_aborted_and_no_longer_counts_as_waiting() {
    let fixture = DnsFixture::open().await;
    // More than the limit on waiting queries.
    for n in 0..100 {
        let name = format!("n{n}.never.example.com");
        let asking = ask(&fixture, &name, dns_client(ONE));
        assert!(timeout(Duration::from_millis(5), asking).await.is_err());
    }
    let ended = fixture.ended();
    assert_eq!(ended.len(), 100);
    assert!(ended.iter().all(|flow| flow.outcome == "aborted"));
    let known = code(&fixture, "www.example.com", dns_client(ONE)).await;
    assert_eq!(known, ResponseCode::NoError);
}
