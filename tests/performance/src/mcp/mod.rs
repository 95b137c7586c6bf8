//! A minimal MCP server, and a load on it or on a gateway in front of it.

mod client;
mod load;
mod server;

pub use load::Load;
pub use server::Server;

use clap::ValueEnum;

/// Era of the protocol: with or without a handshake.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Era {
    /// 2025-11-25: `initialize`, and a session.
    Legacy,
    /// 2026-07-28: no handshake and no session; each request has all metadata.
    Modern,
}

impl Era {
    const fn version(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }
}
