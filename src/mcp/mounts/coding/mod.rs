//! Coding sidecars: programs in tool containers that offer seven operations over HTTP. Clients see
//! each operation as a tool of an MCP server.
//!
//! There is no MCP handshake: the list of tools is built in, and a call is one HTTP request. A
//! request that the sidecar may have received is never repeated. Dropping a call closes its
//! connection, upon which the sidecar kills the command. The proxy neither starts nor stops
//! sidecars.

mod answer;
mod bash;
mod endpoint;
mod operation;
mod progress;
mod ready;
mod results;
mod session;
mod tail;
mod unix;

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{BoxFuture, System};
use addons::mcp::{CodingEndpoint, CodingSettings, ServerSettings};
use serde_json::json;
use serde_json::value::to_raw_value;

use super::{Described, MountError, MountSession, Opening, Transport};
use crate::http::Service;
use crate::mcp::version::Version;
use endpoint::SidecarEndpoint;
use ready::until_ready;
use session::CodingSession;

/// Opens sessions with one sidecar.
pub struct CodingTransport {
    service: Arc<Service>,
    system: System,
    settings: CodingSettings,
}

impl CodingTransport {
    /// Creates a transport to the sidecar of these settings.
    pub fn new(service: &Arc<Service>, server: &ServerSettings, settings: &CodingSettings) -> Self {
        let hosts = match &settings.endpoint {
            CodingEndpoint::Unix(_) => Vec::new(),
            CodingEndpoint::Tcp(endpoint) => vec![(endpoint.host.clone(), endpoint.port)],
        };
        Self {
            service: Arc::clone(service),
            system: System {
                name: format!("mcp:{}", server.name).into(),
                hosts,
                trust_private: true,
                url_secrets: Default::default(),
            },
            settings: settings.clone(),
        }
    }
}

impl Transport for CodingTransport {
    fn open<'a>(
        &'a self,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Arc<dyn MountSession>, MountError>> {
        Box::pin(async move {
            let client = opening.http_client(&self.service, &self.system)?;
            let endpoint = SidecarEndpoint::new(&self.settings, client)?;
            let sidecar_version = until_ready(&endpoint, &self.settings).await?;
            // The session is legacy: results of a sidecar lack the members that modern revisions
            // require, and the gateway adds them only to results of legacy sessions.
            let version = opening.version.min(Version::NEWEST_LEGACY);
            let described = described(version, &sidecar_version)?;
            let settings = self.settings.clone();
            let session = CodingSession::new(endpoint, settings, described, opening.ended());
            Ok(Arc::new(session) as Arc<dyn MountSession>)
        })
    }

    /// 1 s. A longer pause would only delay clients: opening a session already waits for the
    /// sidecar, and costs little.
    fn longest_pause(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// The description of a sidecar. The built-in tools never change. Still, `listChanged` is true:
/// without it, the gateway would read the tools again each minute.
fn described(version: Version, sidecar_version: &str) -> Result<Described, MountError> {
    let not_written = |error: serde_json::Error| MountError::Protocol(error.to_string());
    let capabilities = to_raw_value(&json!({ "tools": { "listChanged": true } }));
    let info = to_raw_value(&json!({ "name": "coding-sidecar", "version": sidecar_version }));
    Ok(Described {
        version,
        capabilities: capabilities.map_err(not_written)?,
        server_info: Some(info.map_err(not_written)?),
        instructions: None,
    })
}
