//! Requests from a sandbox through its proxy: the appliance of the run, or a running server.

mod answers;
mod asking;
mod host_ports;
mod learning;
mod logins;
mod names;
mod repositories;
mod server;
mod tools;
