//! A load of MCP requests, and the CPU time, memory and descriptors of the server.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::Era;
use super::client::{Client, Template};
use crate::load::clock::{self, Clock};
use crate::load::figures;
use crate::usage::Usage;

/// Pause between the first requests and the measurement.
const SETTLING: Duration = Duration::from_millis(100);

/// How long to wait for the first event of a stream; not every stream sends one.
const FIRST_EVENT: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    /// `tools/call`.
    Call,
    /// `tools/list`.
    List,
    /// Streams of notifications that stay idle.
    Idle,
}

/// Sends MCP requests. Prints one line of figures.
#[derive(Args)]
pub struct Load {
    #[arg(value_enum)]
    kind: Kind,
    #[arg(long, value_enum)]
    era: Era,
    #[arg(long)]
    server: SocketAddr,
    /// Pid of the server, whose CPU time and memory are measured with those of its descendants.
    #[arg(long)]
    pid: u32,
    /// Source address.
    #[arg(long, default_value = "127.0.0.1")]
    source: IpAddr,
    /// The name of the tool to call.
    #[arg(long, default_value = "tool-0")]
    tool: String,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Number of requests after which the load ends, instead of a time.
    #[arg(long)]
    requests: Option<u64>,
}

impl Load {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.kind {
            Kind::Call => self.repeat(Template::call(self.era, &self.tool)?).await,
            Kind::List => self.repeat(Template::list(self.era)).await,
            Kind::Idle => self.idle().await,
        }
    }

    async fn open(&self) -> anyhow::Result<Client> {
        Client::open(self.server, SocketAddr::new(self.source, 0), self.era).await
    }

    async fn repeat(&self, template: Template) -> anyhow::Result<()> {
        let template = Arc::new(template);
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            let mut client = self.open().await.context("opening")?;
            client.request(&template).await?;
            clients.push(client);
        }
        tokio::time::sleep(SETTLING).await;
        let before = Usage::of(self.pid)?;
        let began = Instant::now();
        let end = began + Duration::from_secs_f64(self.seconds);
        let clocks = clock::unpaced(self.requests, end, clients.len());
        let workers: Vec<_> = clients
            .into_iter()
            .zip(clocks)
            .map(|(client, clock)| tokio::spawn(work(client, Arc::clone(&template), clock)))
            .collect();
        let mut latencies = Vec::new();
        for worker in workers {
            latencies.extend(worker.await??);
        }
        let elapsed = began.elapsed();
        figures::print(latencies, elapsed, &before, &Usage::of(self.pid)?);
        Ok(())
    }

    async fn idle(&self) -> anyhow::Result<()> {
        // At the first request, a gateway connects to the server and reads its lists.
        let mut first = self.open().await.context("opening")?;
        first.request(&Template::list(self.era)).await?;
        tokio::time::sleep(SETTLING).await;
        let before = Usage::of(self.pid)?;
        let mut open = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            let mut client = self.open().await?;
            let mut stream = client.listen().await?.into_body();
            let _ = timeout(FIRST_EVENT, stream.frame()).await;
            open.push((client, stream));
        }
        tokio::time::sleep(Duration::from_secs_f64(self.seconds)).await;
        figures::print_idle(self.connections, &before, &Usage::of(self.pid)?);
        drop(open);
        Ok(())
    }
}

async fn work(
    mut client: Client,
    template: Arc<Template>,
    mut clock: Clock,
) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    while let Some((began, _)) = clock.next().await {
        client.request(&template).await?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}
