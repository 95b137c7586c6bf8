//! Requests from a sandbox, through the appliance of the run or a server.

mod answers;
mod learning;
mod logins;
mod names;
mod repositories;
mod server;
mod tools;
