//! `mcp accept`: accepts the changed definition of a tool, as an operator.

use clap::Args;

use crate::admin::{AcceptanceBody, NamedTool};
use crate::cli::Output;
use crate::cli::exit::{Failure, print, printable};

/// The tool whose definition changed.
#[derive(Args, Debug)]
pub struct Accept {
    /// The server's name in mcp.yaml
    server: String,
    /// The server's own name for the tool
    tool: String,
    #[command(flatten)]
    output: Output,
}

impl Accept {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let (client, output) = (self.output.target.client(), self.output);
        let (server, tool) = (self.server, self.tool);
        let named = NamedTool { server, tool };
        let digests = client.definition(&named).await?;
        let NamedTool { server, tool } = &named;
        if let (false, Some(new)) = (output.json, &digests.changed) {
            let old = &digests.accepted;
            let shown = format!("definition of {tool} of {server}: SHA-256 {new}, was {old}");
            print(printable(&shown))?;
        }
        // With the digest, the server accepts only the definition that was read here. If the
        // definition has not changed, the digest is that of the accepted definition, and the server
        // responds that nothing has changed.
        let digest = Some(digests.changed.unwrap_or(digests.accepted));
        let accepted = client.accept(&named, &AcceptanceBody { digest }).await?;
        output.print(&accepted, |_| {
            printable(&format!("accepted {tool} of {server}"))
        })
    }
}
