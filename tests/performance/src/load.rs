//! One load, through CONNECT with TLS inside, and what it cost the proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificates;

/// What is done over and over.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    /// Requests on connections that stay.
    KeepAlive,
    /// A new tunnel, a handshake and a request each time.
    Tunnels,
    /// Tunnels that are opened and then left alone.
    Idle,
}

/// A load. Prints one line of figures.
#[derive(Args)]
pub struct Load {
    #[arg(value_enum)]
    kind: Kind,
    #[arg(long)]
    proxy: SocketAddr,
    /// The proxy's CA.
    #[arg(long)]
    ca: PathBuf,
    /// The proxy's process, whose CPU time and memory are read.
    #[arg(long)]
    pid: u32,
    #[arg(long, default_value_t = 32)]
    connections: usize,
    #[arg(long, default_value_t = 1)]
    seconds: u64,
    /// Bytes of each answer.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Different host names, for new tunnels.
    #[arg(long, default_value_t = 1)]
    hosts: usize,
}

/// A tunnel with HTTP inside.
struct Client {
    sender: SendRequest<Empty<Bytes>>,
    host: String,
}

/// What the kernel says of a process.
struct Usage {
    cpu: Duration,
    resident_kib: u64,
}

impl Load {
    pub async fn run(self) -> anyhow::Result<()> {
        let tls = certificates::client(&self.ca, b"http/1.1")?;
        let load = Arc::new(self);
        match load.kind {
            Kind::Idle => load.idle(tls).await,
            _ => load.repeat(tls).await,
        }
    }

    async fn repeat(self: Arc<Self>, tls: Arc<ClientConfig>) -> anyhow::Result<()> {
        let done = Arc::new(AtomicU64::new(0));
        let mut workers = Vec::new();
        let (start, started) = tokio::sync::watch::channel(None::<Instant>);
        for worker in 0..self.connections {
            let (load, tls, done) = (Arc::clone(&self), Arc::clone(&tls), Arc::clone(&done));
            let mut started = started.clone();
            workers.push(tokio::spawn(async move {
                let mut latencies = Vec::new();
                let mut kept = match load.kind {
                    Kind::KeepAlive => Some(load.open(&tls, worker).await?),
                    _ => None,
                };
                let begun = started
                    .wait_for(Option::is_some)
                    .await?
                    .unwrap_or_else(Instant::now);
                let end = begun + Duration::from_secs(load.seconds);
                let mut number = worker;
                while Instant::now() < end {
                    let began = Instant::now();
                    match &mut kept {
                        Some(client) => load.request(client).await?,
                        None => load.request(&mut load.open(&tls, number).await?).await?,
                    }
                    number += load.connections;
                    latencies.push(began.elapsed());
                    done.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(latencies)
            }));
        }
        // All connections are open before the clock starts.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = usage(self.pid)?;
        let began = Instant::now();
        start.send_replace(Some(began));
        let mut latencies = Vec::new();
        for worker in workers {
            latencies.extend(worker.await??);
        }
        let elapsed = began.elapsed();
        let after = usage(self.pid)?;
        latencies.sort_unstable();
        let done = done.load(Ordering::Relaxed).max(1);
        let at = |share: f64| {
            let index =
                ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
            latencies
                .get(index)
                .map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
        };
        let cpu = (after.cpu - before.cpu).as_secs_f64() * 1e6 / done as f64;
        println!(
            "cpu_us_each={cpu:.1} per_second={:.0} p50_ms={:.2} p99_ms={:.2} p999_ms={:.2} resident_kib={}",
            done as f64 / elapsed.as_secs_f64(),
            at(0.5),
            at(0.99),
            at(0.999),
            after.resident_kib,
        );
        Ok(())
    }

    async fn idle(&self, tls: Arc<ClientConfig>) -> anyhow::Result<()> {
        let before = usage(self.pid)?;
        let mut open = Vec::with_capacity(self.connections);
        for number in 0..self.connections {
            let mut client = self.open(&tls, number).await?;
            self.request(&mut client).await?;
            open.push(client);
        }
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        let after = usage(self.pid)?;
        let each =
            after.resident_kib.saturating_sub(before.resident_kib) as f64 / self.connections as f64;
        println!("kib_each={each:.1} resident_kib={}", after.resident_kib);
        drop(open);
        Ok(())
    }

    async fn open(&self, tls: &Arc<ClientConfig>, number: usize) -> anyhow::Result<Client> {
        let host = match self.hosts {
            1 => "api.example.com".to_owned(),
            hosts => format!("h{}.many.example.com", number % hosts),
        };
        let stream = self
            .tunnel(tls, &host)
            .await
            .with_context(|| host.clone())?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Client { sender, host })
    }

    async fn tunnel(
        &self,
        tls: &Arc<ClientConfig>,
        host: &str,
    ) -> anyhow::Result<TlsStream<TcpStream>> {
        let mut socket = TcpStream::connect(self.proxy).await?;
        socket.set_nodelay(true)?;
        let connect = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
        socket.write_all(connect.as_bytes()).await?;
        let mut answer = Vec::with_capacity(256);
        while !answer.ends_with(b"\r\n\r\n") {
            if socket.read_buf(&mut answer).await? == 0 || answer.len() > 4096 {
                bail!("the proxy closed: {}", String::from_utf8_lossy(&answer));
            }
        }
        if !answer.starts_with(b"HTTP/1.1 200") {
            bail!("refused: {}", String::from_utf8_lossy(&answer));
        }
        let connector = TlsConnector::from(Arc::clone(tls));
        Ok(connector
            .connect(host.to_owned().try_into()?, socket)
            .await?)
    }

    async fn request(&self, client: &mut Client) -> anyhow::Result<()> {
        client.sender.ready().await?;
        let request = Request::get(format!("/{}", self.size)).header("host", &client.host);
        let response = client
            .sender
            .send_request(request.body(Empty::new())?)
            .await?;
        self.read(response).await
    }

    async fn read(&self, response: hyper::Response<hyper::body::Incoming>) -> anyhow::Result<()> {
        let status = response.status();
        let mut body = response.into_body();
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            read += frame?.data_ref().map_or(0, Bytes::len);
        }
        if read != self.size || status != 200 {
            bail!("{status} with {read} bytes");
        }
        Ok(())
    }
}

fn usage(pid: u32) -> anyhow::Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields after the parenthesised name: utime and stime are the 12th and 13th of those.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
    Ok(Usage {
        // The kernel counts in hundredths of a second.
        cpu: Duration::from_millis(10 * (ticks(11) + ticks(12))),
        resident_kib: resident.unwrap_or(0),
    })
}
