//! hickory-resolver asks nameservers by IP address alone. A link-local address needs the interface
//! too, which [`Zones`] adds to its sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::net::runtime::{RuntimeProvider, TokioRuntimeProvider};

type Opened<T> = Pin<Box<dyn Send + Future<Output = io::Result<T>>>>;

/// Opens hickory-resolver's sockets.
#[derive(Clone)]
pub struct Zones {
    tokio: TokioRuntimeProvider,
    /// The nameservers whose addresses have a zone.
    zoned: Arc<[SocketAddr]>,
}

impl Zones {
    pub fn of(nameservers: &[SocketAddr]) -> Self {
        let has_zone = |address: &&SocketAddr| match address {
            SocketAddr::V6(six) => six.scope_id() != 0,
            SocketAddr::V4(_) => false,
        };
        Self {
            tokio: TokioRuntimeProvider::default(),
            zoned: nameservers.iter().filter(has_zone).copied().collect(),
        }
    }

    /// The nameserver with its zone; `None` if it has none.
    fn zoned(&self, ip: IpAddr, port: u16) -> Option<SocketAddr> {
        let is_this = |other: &&SocketAddr| (other.ip(), other.port()) == (ip, port);
        self.zoned.iter().find(is_this).copied()
    }
}

impl RuntimeProvider for Zones {
    type Handle = <TokioRuntimeProvider as RuntimeProvider>::Handle;
    type Timer = <TokioRuntimeProvider as RuntimeProvider>::Timer;
    type Udp = <TokioRuntimeProvider as RuntimeProvider>::Udp;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.tokio.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        bind: Option<SocketAddr>,
        limit: Option<Duration>,
    ) -> Opened<Self::Tcp> {
        let server = self.zoned(server.ip(), server.port()).unwrap_or(server);
        self.tokio.connect_tcp(server, bind, limit)
    }

    fn bind_udp(&self, local: SocketAddr, server: SocketAddr) -> Opened<Self::Udp> {
        let binding = self.tokio.bind_udp(local, server);
        let Some(zoned) = self.zoned(server.ip(), server.port()) else {
            return binding;
        };
        Box::pin(async move {
            let socket = binding.await?;
            // Binds the socket to the interface: hickory-resolver sends without a zone.
            socket.connect(zoned).await?;
            Ok(socket)
        })
    }
}
