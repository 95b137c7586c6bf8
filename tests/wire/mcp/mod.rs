//! The MCP gateway over HTTP, with legacy servers, hostile servers and coding sidecars.

mod bounds;
mod charged;
mod client;
mod coding;
mod command_policy;
mod eras;
mod front;
mod health;
pub mod hostile;
mod http_sse;
mod intercept;
mod later_answers;
mod legacy;
mod lenient;
mod library;
mod modern;
mod policies;
mod policy_servers;
mod reloads;
mod server;
mod telemetry;
mod timeouts;
mod url_secrets;
