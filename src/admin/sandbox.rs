//! What a sandbox needs to use this proxy. Nothing in it is secret.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;

/// Where the proxy listens, what to trust, and which credentials it holds.
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

/// An entry of `credentials.yaml` that is active. No secret is in it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct ActiveCredential {
    pub name: String,
    /// `set_headers`, `basic`, `bearer`, `github_app` or `oauth`.
    pub kind: String,
    /// `name:port`
    pub hosts: Vec<String>,
    /// The names of the headers that carry the secret.
    pub headers: Vec<String>,
    /// The login's format; of `oauth` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The key of the login in a token file that holds several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// The account of the login, where its token file names one. It grants no access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

/// What a sandbox needs to use this proxy: `env` and `sandbox-files` print it. No secret is in it.
#[utoipa::path(
    get,
    path = "/internal/sandbox",
    responses((status = 200, body = SandboxSettings))
)]
pub(super) async fn sandbox(State(api): State<Arc<Api>>) -> Json<SandboxSettings> {
    Json((api.state.sandbox)())
}
