//! The proxy with an MCP gateway.

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::{Origin, Proxy, Setup, free_address};

pub struct Gateway {
    pub proxy: Proxy,
    address: SocketAddr,
}

impl Gateway {
    /// Starts it with the content of `mcp.yaml`.
    pub fn start(origin: &Origin, mcp: &Value) -> Self {
        let mut setup = Setup::new(origin);
        let address = free_address();
        setup.proxy["listen"]["mcp"] = vec![address.to_string()].into();
        let text = serde_json::to_string_pretty(mcp).unwrap();
        std::fs::write(setup.dir().join("config/mcp.yaml"), text).unwrap();
        Self {
            proxy: setup.start(),
            address,
        }
    }

    /// The command that speaks stdio to a client and HTTP to the gateway.
    pub fn bridge(&self) -> [String; 5] {
        let program = env!("CARGO_BIN_EXE_unified-proxy");
        let words = [program, "mcp", "stdio", "--url"];
        let [program, mcp, stdio, flag] = words.map(str::to_owned);
        [program, mcp, stdio, flag, self.url("/mcp")]
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
