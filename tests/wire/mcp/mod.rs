//! The MCP gateway over HTTP, with legacy servers, hostile servers and coding sidecars.

mod bounds;
mod client;
mod coding;
mod eras;
mod front;
mod health;
mod hostile;
mod http_sse;
mod judged_again;
mod legacy;
mod library;
mod measured;
mod modern;
mod server;
