//! `mcp stdio|list|call|accept|policy`: uses the tools of MCP servers through the gateway.

mod accept;
mod call;
mod endpoint;
mod gateway_client;
mod http_client;
mod list;
mod policy;
mod rpc;
mod stdio;
mod waiting;

use addons::contract::ContainerId;
use clap::{Args, Subcommand};

use super::exit::{Failure, code};
use super::{Output, parse_id};
use crate::tls::GATEWAY_VARIABLE;
pub use call::parse_arguments;

use endpoint::{DEFAULT_URL, Endpoint};
use gateway_client::GatewayClient;
use http_client::HttpClient;

/// Subcommands of `mcp`.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Relay MCP between a client on stdin and stdout and the gateway
    Stdio(Gateway),
    /// List the tools that a container sees
    List(OnBehalf),
    /// Call a tool
    Call(call::CallTool),
    /// Accept the changed definition of a tool
    Accept(accept::Accept),
    /// Show the policy in force, or return to the bundle of mcp.yaml
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
}

/// The gateway to use.
#[derive(Args, Debug)]
pub struct Gateway {
    /// The gateway: http://HOST:PORT/mcp, or unix:PATH for a container's own socket [default:
    /// $UNIFIED_PROXY_MCP_URL, else http://127.0.0.1:8090/mcp]
    #[arg(long, value_name = "URL")]
    url: Option<Endpoint>,
}

impl Gateway {
    fn endpoint(self) -> Result<Endpoint, Failure> {
        if let Some(named) = self.url {
            return Ok(named);
        }
        let named = std::env::var(GATEWAY_VARIABLE);
        let url = named.as_deref().unwrap_or(DEFAULT_URL);
        url.parse().map_err(|error| {
            let message = format_args!("{GATEWAY_VARIABLE}={url}: {error}");
            Failure::new(code::USAGE, message)
        })
    }
}

/// The container on whose behalf a request is sent, and the way to send it.
#[derive(Args, Debug)]
pub struct OnBehalf {
    /// Act on behalf of this container, as an operator [default: act as the container in which the
    /// command runs]
    #[arg(long, value_name = "ID", value_parser = parse_id, conflicts_with = "url")]
    container: Option<ContainerId>,
    #[command(flatten)]
    gateway: Gateway,
    #[command(flatten)]
    output: Output,
}

impl OnBehalf {
    fn client(self) -> Result<GatewayClient, Failure> {
        match &self.container {
            Some(id) => Ok(GatewayClient::operator(self.output.target.client(), id)),
            None => {
                let http = HttpClient::new(self.gateway.endpoint()?);
                Ok(GatewayClient::Container(http))
            }
        }
    }
}

impl McpCommand {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Stdio(gateway) => stdio::run(gateway.endpoint()?).await,
            Self::List(container) => list::run(container).await,
            Self::Call(call) => call.run().await,
            Self::Accept(accept) => accept.run().await,
            Self::Policy(policy) => policy.run().await,
        }
    }
}
