//! The ports of `unified-proxy dev`, the container `local`, and the text printed at the start.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use addons::contract::{AuthMode, ContainerId, Repo, Source};
use time::OffsetDateTime;
use time::macros::datetime;

use super::failure::Failure;
use crate::config::{Config, Listen};
use crate::registry::{NewRegistration, Registry};

/// The expiry of the container `local`, which should never expire. A lease must have an expiry, so
/// this is the last second that RFC 3339 can express.
const NEVER: OffsetDateTime = datetime!(9999-12-31 23:59:59 UTC);

/// The options of `dev`.
#[derive(Clone, Debug, Default)]
pub struct DevOptions {
    /// Repositories that `local` may use, as `owner/name`.
    pub repos: Vec<String>,
    /// The port of the proxy; `None` keeps the configured addresses.
    pub proxy_port: Option<u16>,
    /// The port of DNS, for UDP and TCP; `None` keeps the configured addresses.
    pub dns_port: Option<u16>,
    /// The port of the MCP gateway; `None` keeps the configured addresses.
    pub mcp_port: Option<u16>,
}

impl DevOptions {
    /// For each port of the command line, replaces the addresses of the listener with one address:
    /// that port on the first configured IP address, or on 127.0.0.1 if none is configured.
    pub fn set_ports(&self, listen: &mut Listen) {
        for (addresses, port) in [
            (&mut listen.proxy, self.proxy_port),
            (&mut listen.dns, self.dns_port),
            (&mut listen.mcp, self.mcp_port),
        ] {
            if let Some(port) = port {
                let first = addresses.first().map(SocketAddr::ip);
                let ip = first.unwrap_or(Ipv4Addr::LOCALHOST.into());
                *addresses = vec![SocketAddr::new(ip, port)];
            }
        }
    }

    /// Registers 127.0.0.1 as the container `local`. If the registry cannot be read or written,
    /// logs an error and returns `Ok`.
    pub async fn register(&self, registry: &Arc<Registry>) -> Result<(), Failure> {
        let id = ContainerId::parse("local")
            .ok_or_else(|| Failure::Internal("`local` is not a container id".to_owned()))?;
        let repos = self.repos.iter().map(|name| Repo {
            name: name.as_str().into(),
            max_receive_pack_bytes: None,
        });
        let registration = NewRegistration {
            id,
            source: Source::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            repos: repos.collect(),
            auth_mode: AuthMode::User,
            allowed_domains: None,
            expires_at: NEVER,
        };
        let registered = registry.register(registration).await;
        if registered.is_err() {
            // Not fatal: the server starts, and denies every flow from an unregistered address.
            tracing::error!("the registry cannot be read or written, so `local` is not registered");
        }
        Ok(())
    }
}

/// Prints the addresses of proxy, DNS, MCP gateway and admin API, how to watch requests and how to
/// stop, and three commands to try.
/// `wanted` has the configured DNS addresses. `config` has the bound addresses, which differ from
/// the configured ones if a port of DNS was taken or a port is 0.
pub fn print_what_to_try(config: &Config, wanted: &[SocketAddr]) {
    let listen = &config.proxy.listen;
    let first = |addresses: &[SocketAddr]| {
        addresses
            .first()
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    let (proxy, dns) = (first(&listen.proxy), first(&listen.dns));
    let ca = config.proxy.certs_dir.join("ca.pem");
    let ca = ca.display();
    let (dns_host, dns_port) = dns.rsplit_once(':').unwrap_or((&dns, "53"));
    let moved = match wanted.first() {
        Some(taken) if wanted != listen.dns && taken.port() != 0 => {
            format!("; port {} is taken", taken.port())
        }
        _ => String::new(),
    };
    let mcp = match listen.mcp.first() {
        Some(address) => format!("http://{address}/mcp"),
        None => "off (listen.mcp is empty)".to_owned(),
    };
    println!(
        "unified-proxy listens on
  proxy  http://{proxy}
  dns    {dns} (UDP and TCP{moved})
  mcp    {mcp}
  admin  {admin}
  CA     {ca}

127.0.0.1 is registered as container `local`. In a second terminal, in this directory,
`unified-proxy tail` shows each request as it ends. Ctrl-C stops `dev`. Try:
  curl -x http://{proxy} --cacert {ca} https://api.github.com/zen
  curl -x http://{proxy} --cacert {ca} https://evil.example.com/
  dig @{dns_host} -p {dns_port} evil.example.com
",
        admin = listen.admin.display(),
    );
}
