use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::pin::pin;
use std::thread;

use addons::contract::{
    AuthMode, ContainerId, Host, LeaseId, Registration, Scheme, Source, Standing,
};
use time::OffsetDateTime;
use tokio::io::DuplexStream;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::upstream::connect::speak_http1;
use crate::upstream::{Home, RequestBody, SocketBudget, UpstreamSocket};

fn container() -> Container {
    let now = OffsetDateTime::now_utc();
    Container::new(Registration {
        id: ContainerId::parse("web").unwrap(),
        lease: LeaseId::generate(),
        source: Source::Address(Ipv4Addr::LOCALHOST.into()),
        repos: Vec::new(),
        auth_mode: AuthMode::User,
        created_at: now,
        expires_at: now,
        allowed_domains: None,
        standing: Standing::default(),
    })
}

fn endpoint() -> Endpoint {
    Endpoint {
        scheme: Scheme::Http,
        host: Host::parse("api.example.com").unwrap(),
        port: 80,
    }
}

/// A connection of this thread, and its other end. Dropping the other end closes it.
async fn connection(container: &Container) -> (Box<Http1>, DuplexStream) {
    let (stream, other_end) = tokio::io::duplex(1);
    let (home, address) = (Home::here(Arc::default()), (Ipv4Addr::LOCALHOST, 80).into());
    let ended = container.ended().clone();
    let spoken = speak_http1(stream, home, address, ended, endpoint(), 1, false).await;
    (spoken.unwrap(), other_end)
}

/// A connection of another thread, and its other end.
async fn foreign(container: &Container) -> (Box<Http1>, DuplexStream) {
    let (mut connection, other_end) = connection(container).await;
    let elsewhere = thread::spawn(|| Home::here(Arc::default()));
    connection.home = elsewhere.join().unwrap();
    (connection, other_end)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_connection_that_another_thread_takes_no_longer_needs_the_runtime_that_dialled_it() {
    let (container, mut connections) = (Arc::new(container()), Connections::default());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let dial = async {
        let principal = Principal::from(Arc::clone(&container));
        let permit = SocketBudget::new(4).take(&principal).unwrap();
        let socket = UpstreamSocket::connect(address, permit).await.unwrap();
        let (home, ended) = (socket.home(), container.ended().clone());
        speak_http1(socket, home, address, ended, endpoint(), 1, false).await
    };
    // The runtime ends with its thread.
    let dialled = thread::scope(|scope| {
        let dialling = scope.spawn(|| runtime().block_on(dial));
        dialling.join().unwrap().unwrap()
    });
    let answering = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .unwrap();
    });
    assert!(connections.keep(&container, dialled).is_none());
    let Http1 { sender, driver, .. } = &mut *connections.take(&endpoint(), false).unwrap();
    let request = http::Request::new(RequestBody::default());
    let answer = runtime().block_on(async {
        let mut sending = pin!(driver.before_poll(|| sender.try_send_request(request)));
        poll_fn(|context| driver.poll(context, |context| sending.as_mut().poll(context))).await
    });
    assert_eq!(answer.ok().unwrap().status(), 204);
    answering.join().unwrap();
}

#[tokio::test]
async fn a_mount_takes_no_connection_of_another_thread_if_the_server_serves_several() {
    let (container, mut connections) = (container(), Connections::default());
    let (foreign, _foreign_end) = foreign(&container).await;
    let (own, _own_end) = connection(&container).await;
    let endpoint = own.endpoint.clone();
    assert!(connections.keep(&container, foreign).is_none());
    assert!(connections.keep(&container, own).is_none());
    assert!(connections.take(&endpoint, true).is_some());
    assert!(connections.take(&endpoint, true).is_none());
    assert!(connections.take(&endpoint, false).is_some());
}

#[tokio::test]
async fn a_mount_takes_a_connection_of_another_thread_if_the_server_may_serve_only_one() {
    let (container, mut connections) = (container(), Connections::default());
    let (closed, other_end) = foreign(&container).await;
    let endpoint = closed.endpoint.clone();
    assert!(connections.keep(&container, closed).is_none());
    drop(other_end);
    let (open, _open_end) = foreign(&container).await;
    assert!(connections.keep(&container, open).is_none());
    assert!(connections.take(&endpoint, true).is_some());
}

#[tokio::test]
async fn a_full_pool_and_the_pool_of_an_ended_lease_keep_no_further_connection() {
    let (container, mut connections) = (container(), Connections::default());
    for _ in 0..MAX_IDLE {
        let (kept, _) = connection(&container).await;
        assert!(connections.keep(&container, kept).is_none());
    }
    let (over, _) = connection(&container).await;
    assert!(connections.keep(&container, over).is_some());
    container.end();
    // As `prune` does once when the lease ends.
    connections = Connections::default();
    let (late, _) = connection(&container).await;
    assert!(connections.keep(&container, late).is_some());
    assert!(connections.idle.is_empty());
}
