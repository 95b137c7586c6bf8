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

/// A program of a measurement.
#[derive(Parser)]
enum Part {
    /// Writes the certificates of a run.
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
    /// A relay that terminates TLS on both sides, without decisions.
    Relay(Peer),
    /// A relay of plain HTTP, without decisions.
    PlainRelay {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        upstream: SocketAddr,
    },
    /// A hudsucker proxy, without decisions.
    #[cfg(feature = "hudsucker")]
    Hudsucker {
        #[command(flatten)]
        peer: Peer,
        /// Disables Nagle's algorithm, which hudsucker leaves enabled and which delays responses.
        #[arg(long)]
        nodelay: bool,
    },
    /// Sends an HTTP load through a proxy and prints its figures.
    Load(load::Load),
    /// A minimal MCP server.
    McpServer(mcp::Server),
    /// Sends a load of MCP requests and prints its figures.
    Mcp(mcp::Load),
    /// Sends DNS queries to a server and prints the figures.
    Questions(questions::Questions),
}

/// Arguments of a proxy that sends every request to one origin.
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
