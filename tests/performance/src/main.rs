//! Loads, origins, and minimal proxies for comparison, with which the product is measured.

mod certificates;
#[cfg(feature = "hudsucker")]
mod hudsucker;
mod load;
mod mcp;
mod nameserver;
mod origin;
mod questions;
mod relay;
mod usage;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser};

use certificates::Certificates;

/// One part of a measurement.
#[derive(Parser)]
enum Part {
    /// Makes the certificates of a run.
    Certificates { directory: PathBuf },
    /// An HTTPS origin.
    Origin {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        certificates: PathBuf,
    },
    /// A nameserver that has an address for every name.
    Nameserver {
        #[arg(long)]
        listen: SocketAddr,
    },
    /// A relay that terminates TLS on both sides and decides nothing.
    Relay(Peer),
    /// A relay of plain HTTP that decides nothing.
    PlainRelay {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        upstream: SocketAddr,
    },
    /// A hudsucker proxy that decides nothing.
    #[cfg(feature = "hudsucker")]
    Hudsucker {
        #[command(flatten)]
        peer: Peer,
        /// As published it leaves Nagle's algorithm on, which holds answers back.
        #[arg(long)]
        nodelay: bool,
    },
    /// A load through a proxy, and what it cost.
    Load(load::Load),
    /// A bare MCP server.
    McpServer(mcp::Server),
    /// A load of MCP requests, and what it cost.
    Mcp(mcp::Load),
    /// A load on a DNS server, and what it cost.
    Questions(questions::Questions),
}

/// A proxy of ours that sends everything to one origin.
#[derive(Args)]
struct Peer {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    upstream: SocketAddr,
    #[arg(long)]
    certificates: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match Part::parse() {
        Part::Certificates { directory } => Certificates(directory).make(),
        Part::Origin {
            listen,
            certificates,
        } => runtime.block_on(origin::run(listen, &Certificates(certificates))),
        Part::Nameserver { listen } => nameserver::run(listen),
        Part::Relay(peer) => runtime.block_on(relay::run(peer)),
        Part::PlainRelay { listen, upstream } => {
            runtime.block_on(relay::run_plain(listen, upstream))
        }
        #[cfg(feature = "hudsucker")]
        Part::Hudsucker { peer, nodelay } => runtime.block_on(hudsucker::run(peer, nodelay)),
        Part::Load(load) => runtime.block_on(load.run()),
        Part::McpServer(server) => runtime.block_on(server.run()),
        Part::Mcp(load) => runtime.block_on(load.run()),
        Part::Questions(questions) => runtime.block_on(questions.run()),
    }
}
