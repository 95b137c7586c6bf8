//! A load over HTTP, and the CPU time, memory and descriptors of the proxy.

mod client;
pub mod clock;
pub mod figures;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::usage::Usage;
use client::{Client, Target};
use clock::Clock;

/// Pause between the first requests and the measurement.
const SETTLING: Duration = Duration::from_millis(100);

/// The repeated operation.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    /// Requests on persistent connections.
    KeepAlive,
    /// Requests over HTTP/2, with concurrent streams on each connection.
    Streams,
    /// A new tunnel, a TLS handshake and a request each time.
    Tunnels,
    /// Tunnels that are opened, used once and then left idle.
    Idle,
    /// Plain requests on persistent connections, which the proxy must deny.
    Denials,
}

/// The route to the origin.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Route {
    /// A CONNECT, with TLS inside.
    Connect,
    /// TLS to a reverse proxy of the origin, or to the origin itself.
    Reverse,
}

/// Sends a load. Prints one line of figures.
#[derive(Args)]
pub struct Load {
    #[arg(value_enum)]
    kind: Kind,
    #[arg(long)]
    proxy: SocketAddr,
    #[arg(long, value_enum, default_value = "connect")]
    route: Route,
    /// PEM file of the CA of the TLS server.
    #[arg(long)]
    ca: PathBuf,
    /// Pid of the proxy, whose CPU time and memory are measured with those of its descendants.
    #[arg(long)]
    pid: u32,
    /// Source address.
    #[arg(long, default_value = "127.0.0.1")]
    source: IpAddr,
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Concurrent requests on each connection, for `streams`.
    #[arg(long, default_value_t = 100)]
    streams: usize,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds over which `idle` opens its tunnels one by one; without it, all at once.
    #[arg(long)]
    ramp: Option<f64>,
    /// Number of requests after which the load ends, instead of a time.
    #[arg(long)]
    requests: Option<u64>,
    /// Requests per second, at fixed times; latency counts from the time at which each request was
    /// due.
    #[arg(long)]
    rate: Option<f64>,
    /// Bytes of each response body.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// The host for `keep-alive`, `tunnels` and `idle`, if `--hosts` is 1.
    #[arg(long, default_value = "api.example.com")]
    host: String,
    /// Number of different host names, for `tunnels` and `idle`.
    #[arg(long, default_value_t = 1)]
    hosts: usize,
    /// The number in the first host name, if `--hosts` is larger than 1.
    #[arg(long, default_value_t = 0)]
    first_host: usize,
}

impl Load {
    pub async fn run(self) -> anyhow::Result<()> {
        let target = Arc::new(Target::new(&self)?);
        match self.kind {
            Kind::Idle => self.idle(&target).await,
            _ => self.repeat(&target).await,
        }
    }

    async fn repeat(&self, target: &Arc<Target>) -> anyhow::Result<()> {
        let kept = self.open_kept(target).await?;
        tokio::time::sleep(SETTLING).await;
        let before = Usage::of(self.pid)?;
        let began = Instant::now();
        let clocks = clock::clocks(self, kept.len(), began);
        let mut workers = Vec::new();
        for (kept, clock) in kept.into_iter().zip(clocks) {
            workers.push(tokio::spawn(work(Arc::clone(target), kept, clock)));
        }
        let mut latencies = Vec::new();
        for worker in workers {
            latencies.extend(worker.await??);
        }
        let elapsed = began.elapsed();
        let after = Usage::of(self.pid)?;
        figures::print(latencies, elapsed, &before, &after);
        Ok(())
    }

    /// Opens the workers' connections and sends one request on each, so that the work of a proxy
    /// for a first request, such as connecting to the origin, is not measured. Workers of
    /// [`Kind::Streams`] share connections; workers of [`Kind::Tunnels`] get none, since each
    /// request opens its own tunnel.
    async fn open_kept(&self, target: &Target) -> anyhow::Result<Vec<Option<Client>>> {
        let mut kept = Vec::new();
        for _ in 0..self.connections {
            match self.kind {
                Kind::Tunnels => kept.push(None),
                Kind::Streams => {
                    let client = target.used(0).await?;
                    for _ in 1..self.streams {
                        kept.push(Some(client.another()?));
                    }
                    kept.push(Some(client));
                }
                _ => kept.push(Some(target.used(0).await?)),
            }
        }
        Ok(kept)
    }

    async fn idle(&self, target: &Arc<Target>) -> anyhow::Result<()> {
        let before = Usage::of(self.pid)?;
        let pause = self.ramp.unwrap_or_default() / self.connections as f64;
        let mut opening = Vec::with_capacity(self.connections);
        for number in 0..self.connections {
            let target = Arc::clone(target);
            opening.push(tokio::spawn(async move { target.used(number).await }));
            if self.ramp.is_some() {
                tokio::time::sleep(Duration::from_secs_f64(pause)).await;
            }
        }
        let mut open = Vec::with_capacity(self.connections);
        for one in opening {
            open.push(one.await??);
        }
        tokio::time::sleep(Duration::from_secs_f64(self.seconds)).await;
        figures::print_idle(self.connections, &before, &Usage::of(self.pid)?);
        drop(open);
        Ok(())
    }
}

async fn work(
    target: Arc<Target>,
    mut kept: Option<Client>,
    mut clock: Clock,
) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    while let Some((due, number)) = clock.next().await {
        match &mut kept {
            Some(client) => target.request(client).await?,
            None => {
                let mut client = target.open(number).await?;
                target.request(&mut client).await?;
            }
        }
        latencies.push(due.elapsed());
    }
    Ok(latencies)
}
