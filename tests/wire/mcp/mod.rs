//! The gateway's HTTP front, before a server with a handshake, hostile ones and coding sidecars.

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
