//! What leaves a sandbox: through the appliance of the run, or a server's.

mod answers;
mod learning;
mod logins;
mod names;
mod repositories;
mod server;
mod tools;
