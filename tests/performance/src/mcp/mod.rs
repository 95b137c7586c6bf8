//! A bare MCP server, and a load on whatever stands before it.

mod client;
mod load;
mod server;

pub use load::Load;
pub use server::Server;

use clap::ValueEnum;

/// How a client and a server begin.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Era {
    /// 2025-11-25: `initialize`, and a session.
    Legacy,
    /// 2026-07-28: each request stands alone.
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
