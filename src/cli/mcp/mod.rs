//! `mcp stdio|list|call|accept`

mod accept;
mod asker;
mod call;
mod endpoint;
mod http_client;
mod list;
mod rpc;
mod stdio;

use addons::contract::ContainerId;
use clap::{Args, Subcommand};

use super::exit::Failure;
use super::{Target, parse_id};
pub use call::parse_arguments;

use asker::Asker;
use endpoint::{DEFAULT_URL, Endpoint};

/// What to do with the tools of MCP servers.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Relay MCP between stdin and stdout and the gateway
    Stdio(Gateway),
    /// List the tools that a container sees
    List(list::ListTools),
    /// Call a tool
    Call(call::CallTool),
    /// Accept the changed definition of a tool
    Accept(accept::Accept),
}

/// Where the gateway is.
#[derive(Args, Debug)]
pub struct Gateway {
    /// The gateway: http://HOST:PORT/mcp, or unix:PATH for a container's own socket
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    url: Endpoint,
}

/// On whose behalf.
#[derive(Args, Debug)]
struct OnBehalf {
    /// On behalf of this container, as an operator [default: of the container that this runs in]
    #[arg(long, value_name = "ID", value_parser = parse_id, conflicts_with = "url")]
    container: Option<ContainerId>,
    #[command(flatten)]
    gateway: Gateway,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl OnBehalf {
    fn asker(&self) -> Asker {
        match &self.container {
            Some(id) => Asker::operator(self.target.client(), id),
            None => Asker::container(self.gateway.url.clone()),
        }
    }
}

impl McpCommand {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Stdio(gateway) => stdio::run(gateway.url).await,
            Self::List(list) => list.run().await,
            Self::Call(call) => call.run().await,
            Self::Accept(accept) => accept.run().await,
        }
    }
}
