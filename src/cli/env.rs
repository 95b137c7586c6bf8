//! `env`: prints the environment variables that make clients use the proxy.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use http::Uri;
use serde_json::Value;

use super::Server;
use super::exit::{Failure, code, print};
use crate::admin::SandboxSettings;
use crate::sandbox::GATEWAY_PORT;
use crate::tls::variables;

/// The output format, the location of the proxy for clients, and the server to query.
#[derive(Args, Debug)]
pub struct Env {
    /// Output format
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    shell: Shell,
    #[command(flatten)]
    location: ProxyLocation,
    #[command(flatten)]
    server: Server,
}

/// The URL of the proxy and the directory of its certificates, as clients reach them.
#[derive(Args, Debug)]
pub(super) struct ProxyLocation {
    /// The proxy as clients reach it, http://HOST:PORT [default: the running server's first
    /// listener]
    #[arg(long, value_name = "URL", value_parser = proxy_url)]
    proxy: Option<String>,
    /// Where clients have the server's certs_dir [default: its own path]
    #[arg(long, value_name = "DIR")]
    certs: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Sh,
    Fish,
    Json,
}

impl Env {
    /// Prints the variables. Queries the server only if `--proxy` or `--certs` is missing. With
    /// both options, assumes that the MCP gateway listens at [`GATEWAY_PORT`] on the proxy's host.
    pub(super) async fn run(self) -> Result<(), Failure> {
        let variables = match (&self.location.proxy, &self.location.certs) {
            (Some(proxy), Some(certs)) => {
                variables(proxy, certs, Some(&gateway(host(proxy), GATEWAY_PORT)))
            }
            _ => self
                .location
                .variables(&self.server.client()?.sandbox().await?)?,
        };
        match self.shell {
            Shell::Sh => variables
                .iter()
                .try_for_each(|(name, value)| print(format_args!("export {name}={}", sh(value)))),
            Shell::Fish => variables.iter().try_for_each(|(name, value)| {
                print(format_args!("set -gx {name} {}", fish(value)))
            }),
            Shell::Json => {
                let object: Value = variables.into_iter().collect();
                print(format_args!("{object:#}"))
            }
        }
    }
}

impl ProxyLocation {
    /// Returns the variables for clients of a server with these settings. The arguments override
    /// the settings. Fails if the server has no proxy listener and `--proxy` is missing.
    pub(super) fn variables(
        &self,
        settings: &SandboxSettings,
    ) -> Result<Vec<(&'static str, String)>, Failure> {
        let proxy = match (&self.proxy, settings.proxy.first()) {
            (Some(proxy), _) => proxy.clone(),
            (None, Some(address)) => format!("http://{}", reachable(address)),
            (None, None) => {
                let message = "the server has no proxy listener: give --proxy URL, or set listen.proxy in proxy.yaml";
                return Err(Failure::new(code::CONFIG, message));
            }
        };
        let certs = self.certs.as_deref();
        let certs = certs.unwrap_or(Path::new(&settings.certs_dir));
        Ok(variables(&proxy, certs, self.gateway(settings).as_deref()))
    }

    /// Returns the MCP gateway's URL, with the host of `--proxy` if that option is given; `None` if
    /// the gateway is off.
    fn gateway(&self, settings: &SandboxSettings) -> Option<String> {
        let listener = reachable(settings.mcp.first()?);
        let (address, port) = listener.rsplit_once(':')?;
        let host = self.proxy.as_deref().map_or(address, host);
        Some(gateway(host, port.parse().ok()?))
    }
}

fn gateway(host: &str, port: u16) -> String {
    format!("http://{host}:{port}/mcp")
}

/// The host of a URL that [`proxy_url`] accepted; an IPv6 address is in brackets.
fn host(proxy: &str) -> &str {
    let authority = proxy.strip_prefix("http://").unwrap_or(proxy);
    authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
}

/// The address at which clients on this machine reach a listener: a loopback address if it listens
/// on all interfaces.
fn reachable(listener: &str) -> String {
    match listener.rsplit_once(':') {
        Some(("0.0.0.0", port)) => format!("127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("[::1]:{port}"),
        _ => listener.to_owned(),
    }
}

/// Accepts `http://HOST:PORT` without path, query and user.
fn proxy_url(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "must be http://HOST:PORT: clients speak to the proxy in clear text";
    let uri: Uri = text.parse().map_err(|_| WRONG)?;
    let is_bare = uri.path() == "/" && uri.query().is_none() && !text.ends_with('/');
    let is_http = uri.scheme_str() == Some("http") && uri.port_u16().is_some();
    let is_plain = is_bare && is_http && !text.contains(['@', '\'']);
    is_plain.then(|| text.to_owned()).ok_or(WRONG)
}

/// Quotes a value with single quotes, in which sh expands nothing.
fn sh(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// Quotes a value with single quotes, in which fish unescapes `\\` and `\'`.
fn fish(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_quoted_value_is_one_word_in_sh_and_fish() {
        assert_eq!(sh("/a b/$c'd"), r"'/a b/$c'\''d'");
        assert_eq!(fish(r"/a b\'d"), r"'/a b\\\'d'");
    }

    #[test]
    fn a_proxy_url_is_http_with_host_and_port_and_nothing_else() {
        each_row(
            [
                "http://proxy:8080",
                "http://127.0.0.1:1",
                "http://[::1]:8080",
            ],
            |good| {
                assert_eq!(proxy_url(good).as_deref(), Ok(good));
            },
        );
        each_row(
            [
                "proxy:8080",
                "https://proxy:8080",
                "http://proxy",
                "http://proxy:8080/",
                "http://proxy:8080/x",
                "http://proxy:8080?x",
                "http://user@proxy:8080",
                "http://",
            ],
            |wrong| {
                assert!(proxy_url(wrong).is_err(), "{wrong}");
            },
        );
    }

    #[test]
    fn the_gateways_url_has_the_given_proxys_host_or_the_reachable_address_of_its_listener() {
        each_row(
            [
                (None, "0.0.0.0:8090", "http://127.0.0.1:8090/mcp"),
                (None, "10.0.0.5:9000", "http://10.0.0.5:9000/mcp"),
                (None, "[::]:8090", "http://[::1]:8090/mcp"),
                (
                    Some("http://unified-proxy:8080"),
                    "0.0.0.0:9000",
                    "http://unified-proxy:9000/mcp",
                ),
                (
                    Some("http://[::1]:8080"),
                    "[::]:8090",
                    "http://[::1]:8090/mcp",
                ),
            ],
            |(proxy, listener, expected)| {
                let location = ProxyLocation {
                    proxy: proxy.map(str::to_owned),
                    certs: None,
                };
                let mut settings = SandboxSettings::default();
                assert_eq!(location.gateway(&settings), None, "without a listener");
                settings.mcp = vec![listener.to_owned()];
                assert_eq!(location.gateway(&settings).as_deref(), Some(expected));
            },
        );
    }

    #[test]
    fn a_listener_on_all_interfaces_is_reached_over_loopback() {
        each_row(
            [
                ("0.0.0.0:8080", "127.0.0.1:8080"),
                ("[::]:8080", "[::1]:8080"),
                ("10.0.0.5:8080", "10.0.0.5:8080"),
            ],
            |(listener, reached)| {
                assert_eq!(reachable(listener), reached);
            },
        );
    }
}
