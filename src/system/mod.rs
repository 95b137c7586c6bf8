//! What the appliance asks for on its own behalf, and the tokens that it gets that way.

mod client;
mod forge;
mod github_app;
mod lenders;
mod oauth;
mod token_file;
mod traces;

pub use client::{SystemClient, SystemError};
pub use forge::AskedForge;
pub use lenders::Lenders;
pub use traces::Traces;
