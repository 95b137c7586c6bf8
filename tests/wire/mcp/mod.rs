//! The gateway's HTTP front, before a server with a handshake.

mod bounds;
mod client;
mod eras;
mod front;
mod health;
mod hostile;
mod http_sse;
mod legacy;
mod library;
mod measured;
mod modern;
mod server;
