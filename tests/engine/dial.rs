//! Dialling of listeners on loopback, and the limit on sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::*;
use tokio::net::TcpListener;
use unified_proxy::upstream::{self, SocketBudget, UpstreamSocket};

use crate::loopback::*;
use crate::resolve::{permitted, test_chain};

async fn permit(host: &str, addresses: &[SocketAddr]) -> Permit {
    let chain = test_chain();
    let (mut flow, _) = permitted(&chain, host).await;
    chain.dial(&mut flow, addresses.to_vec()).await.unwrap()
}

/// A permit to dial an address on behalf of a principal.
async fn permit_of(chain: &Chain, principal: Principal, address: SocketAddr) -> Permit {
    let endpoint = Endpoint {
        scheme: Scheme::Https,
        host: Host::parse("far.example.com").unwrap(),
        port: 443,
    };
    let mut start = chain.to_upstream(Kind::Http, Client::default(), endpoint);
    start.principal = Some(principal);
    chain.dial(&mut start.begin(), vec![address]).await.unwrap()
}

/// A listener whose accept queue is full, so that connecting to it hangs. Also returns the
/// connections that fill the queue.
async fn full_listener() -> (Vec<tokio::net::TcpStream>, TcpListener, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let full = Duration::from_millis(200);
    while let Ok(Ok(stream)) =
        tokio::time::timeout(full, tokio::net::TcpStream::connect(address)).await
    {
        waiting.push(stream);
    }
    (waiting, listener, address)
}

async fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

async fn dial(permit: &Permit, limit: Duration) -> Result<(UpstreamSocket, SocketAddr), Denial> {
    upstream::dial(permit, limit, &SocketBudget::new(100)).await
}

#[tokio::test]
async fn a_lease_takes_at_most_a_quarter_of_the_sockets_and_the_proxy_itself_has_a_quarter() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let places = SocketBudget::new(8);
    let containers = FakeContainers::at(&["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]);
    let chain = test_chain();
    let dial = async |container: Option<&str>| {
        let principal = match container {
            Some(address) => Arc::clone(containers.get(address)).into(),
            None => Principal::System(Arc::new(System {
                name: "test".into(),
                hosts: Vec::new(),
                trust_private: true,
                url_secrets: Default::default(),
            })),
        };
        let permit = permit_of(&chain, principal, address).await;
        upstream::dial(&permit, Duration::from_secs(5), &places).await
    };
    let mut held = Vec::new();
    for address in ["127.0.0.2", "127.0.0.3", "127.0.0.4"] {
        for _ in 0..2 {
            held.push(dial(Some(address)).await.unwrap());
        }
        let denial = dial(Some(address)).await.unwrap_err();
        assert_eq!(denial.code(), Code::TooManyConnections);
    }
    // Of eight sockets, two are reserved for the proxy's own requests.
    assert!(dial(Some("127.0.0.5")).await.is_err());
    held.push(dial(None).await.unwrap());
    held.swap_remove(0);
    held.push(dial(Some("127.0.0.5")).await.unwrap());
    drop(held);
    assert!(dial(Some("127.0.0.2")).await.is_ok());
}

#[tokio::test]
async fn dialling_goes_on_to_the_next_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_waiting, _deaf, hanging) = full_listener().await;
    let refused = closed_port().await;

    let start = Instant::now();
    let permit = permit("far.example.com", &[refused, hanging, address]).await;
    let (socket, reached) = dial(&permit, Duration::from_secs(5)).await.unwrap();
    assert_eq!(reached, address);
    assert!(socket.as_ref().nodelay().unwrap());
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_refused_connection_is_unreachable_and_a_silent_one_times_out() {
    let refused = permit("far.example.com", &[closed_port().await]).await;
    let denial = dial(&refused, Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(denial.code(), Code::UpstreamUnreachable);
    assert_eq!(
        denial.sentence(),
        "Cannot connect to far.example.com: connection refused"
    );

    let (_waiting, _deaf, hanging) = full_listener().await;
    let silent = permit("far.example.com", &[hanging]).await;
    let denial = dial(&silent, Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(denial.code(), Code::UpstreamTimeout);
    assert_eq!(
        denial.sentence(),
        "Cannot connect to far.example.com: timed out"
    );
}
