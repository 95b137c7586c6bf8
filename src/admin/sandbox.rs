//! The settings that a sandbox needs to use this proxy. They contain no secret.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;

/// The addresses of proxy and MCP gateway, the certificates to trust, and the active credentials.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct SandboxSettings {
    /// The addresses of the proxy's listeners, `address:port`.
    pub proxy: Vec<String>,
    /// The addresses of the MCP gateway's listeners, `address:port`.
    #[serde(default)]
    pub mcp: Vec<String>,
    /// The absolute path of the directory of `ca.pem`, `ca-bundle.pem` and `truststore.jks`.
    pub certs_dir: String,
    /// The active entries of `credentials.yaml`, in order.
    pub credentials: Vec<ActiveCredential>,
}

/// An active entry of `credentials.yaml`, without its secret.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct ActiveCredential {
    pub name: String,
    /// `set_headers`, `basic`, `bearer`, `github_app` or `oauth`.
    pub kind: String,
    /// `name:port`
    pub hosts: Vec<String>,
    /// The names of the request headers that the proxy sets to the secret.
    pub headers: Vec<String>,
    /// The provider of the login, which determines the format of its token file; for `oauth` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The key of the login in a token file that holds several; for `oauth` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// The account id of the login, if its token file has one. The id grants no access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

/// The settings that a sandbox needs to use this proxy, for `env`, `run` and `sandbox-files`. They
/// contain no secret.
#[utoipa::path(
    get,
    path = "/internal/sandbox",
    responses((status = 200, body = SandboxSettings))
)]
pub(super) async fn sandbox(State(api): State<Arc<Api>>) -> Json<SandboxSettings> {
    Json(api.state.control.sandbox())
}
