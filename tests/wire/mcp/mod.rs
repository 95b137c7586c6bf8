//! The gateway's HTTP front, before a server with a handshake.

mod bounds;
mod client;
mod front;
mod health;
mod hostile;
mod http_sse;
mod legacy;
mod modern;
mod server;
