//! The gateway's URL: `http://HOST[:PORT][/PATH]`, or `unix:PATH` for a container's own socket.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;

/// The default URL, at which `dev` serves the gateway and a sandbox of `run` reaches it.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8090/mcp";
const DEFAULT_PATH: &str = "/mcp";

/// The address of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A socket file.
    Unix(PathBuf),
}

/// A gateway's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    pub address: Address,
    /// The value of the header field `Host`.
    pub authority: String,
    pub path: String,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: must be followed by the path of a socket".to_owned());
            }
            return Ok(Self {
                text: text.to_owned(),
                address: Address::Unix(path.into()),
                authority: "localhost".to_owned(),
                path: DEFAULT_PATH.to_owned(),
            });
        }
        let uri: Uri = text
            .parse()
            .map_err(|error| format!("not a URL: {error}"))?;
        let Some(authority) = uri.authority().filter(|_| uri.scheme_str() == Some("http")) else {
            return Err("the gateway's URL must be http://HOST:PORT/mcp or unix:PATH".to_owned());
        };
        if authority.as_str().contains('@') {
            return Err("the gateway's URL must not contain credentials".to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" => DEFAULT_PATH,
            path => path,
        };
        Ok(Self {
            text: text.to_owned(),
            address: Address::Tcp(host, authority.port_u16().unwrap_or(80)),
            authority: authority.to_string(),
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_gateway_is_named_by_a_url_or_a_socket() {
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        each_row(
            [
                (
                    DEFAULT_URL,
                    tcp("127.0.0.1", 8090),
                    "127.0.0.1:8090",
                    "/mcp",
                ),
                (
                    "http://unified-proxy:8090",
                    tcp("unified-proxy", 8090),
                    "unified-proxy:8090",
                    "/mcp",
                ),
                ("http://[::1]:1/x?y=z", tcp("::1", 1), "[::1]:1", "/x?y=z"),
                (
                    "http://gateway.example.com/",
                    tcp("gateway.example.com", 80),
                    "gateway.example.com",
                    "/mcp",
                ),
                (
                    "unix:/run/lease.sock",
                    Address::Unix("/run/lease.sock".into()),
                    "localhost",
                    "/mcp",
                ),
            ],
            |(text, address, authority, path)| {
                let endpoint: Endpoint = text.parse().unwrap();
                assert_eq!(endpoint.address, address);
                assert_eq!(endpoint.authority, authority);
                assert_eq!(endpoint.path, path);
            },
        );
    }

    #[test]
    fn invalid_gateway_urls_are_refused() {
        each_row(
            [
                "",
                "127.0.0.1:8090",
                "https://x.example/",
                "unix:",
                "http://u:p@x.example/",
                "/mcp",
            ],
            |text| assert!(text.parse::<Endpoint>().is_err()),
        );
    }
}
