//! Loads, an origin, and the barest proxy that does the same work: what the product is
//! measured with and against.

mod certificates;
mod load;
mod origin;
mod relay;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// One part of a measurement.
#[derive(Parser)]
enum Part {
    /// An HTTPS origin. Writes the CA that signs for it.
    Origin {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        ca: PathBuf,
    },
    /// A relay that terminates TLS on both sides and decides nothing.
    Relay {
        #[arg(long)]
        listen: SocketAddr,
        /// Where every tunnel goes.
        #[arg(long)]
        upstream: SocketAddr,
        #[arg(long)]
        upstream_ca: PathBuf,
        /// Written here: the CA that signs for clients.
        #[arg(long)]
        ca: PathBuf,
    },
    /// A load through a proxy, and what it cost.
    Load(load::Load),
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match Part::parse() {
        Part::Origin { listen, ca } => runtime.block_on(origin::run(listen, &ca)),
        Part::Relay {
            listen,
            upstream,
            upstream_ca,
            ca,
        } => runtime.block_on(relay::run(listen, upstream, &upstream_ca, &ca)),
        Part::Load(load) => runtime.block_on(load.run()),
    }
}
