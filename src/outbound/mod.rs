//! What the appliance asks for on its own behalf, and the tokens that it gets that way.

mod forge;
mod github_app;
mod login;
mod oauth;
mod token_sources;
mod traces;

use bytes::Bytes;
use zeroize::Zeroize;

pub use forge::ForgeClient;
pub use token_sources::TokenSources;
pub use traces::Traces;

/// Wipes an answer that held tokens, where nobody else has it.
fn wipe(body: Bytes) {
    if let Ok(mut body) = body.try_into_mut() {
        body.as_mut().zeroize();
    }
}
