//! What the appliance asks for on its own behalf, and the tokens that it gets that way.

mod client;
mod file_lock;
mod forge;
mod github_app;
mod lenders;
mod login;
mod oauth;
mod token_file;
mod traces;

use bytes::Bytes;
use zeroize::Zeroize;

pub use client::{SystemClient, SystemError};
pub use forge::AskedForge;
pub use lenders::Lenders;
pub use traces::Traces;

/// Wipes an answer that held tokens, where nobody else has it.
fn wipe(body: Bytes) {
    if let Ok(mut body) = body.try_into_mut() {
        body.as_mut().zeroize();
    }
}
