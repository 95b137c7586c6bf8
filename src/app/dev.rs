//! `unified-proxy dev`: this machine as its own sandbox.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use addons::contract::{AuthMode, ContainerId, Repo, Source};
use time::OffsetDateTime;
use time::macros::datetime;

use super::failure::Failure;
use crate::config::Config;
use crate::registry::{NewRegistration, Registry};

/// "Never" for a registry that knows only dates.
const NEVER: OffsetDateTime = datetime!(9999-12-31 23:59:59 UTC);

/// What `dev` was asked for.
#[derive(Clone, Debug, Default)]
pub struct DevOptions {
    /// Repositories that `local` may use, as `owner/name`.
    pub repos: Vec<String>,
}

impl DevOptions {
    /// Registers 127.0.0.1 as `local`.
    pub async fn register(&self, registry: &Arc<Registry>) -> Result<(), Failure> {
        let id = ContainerId::parse("local")
            .ok_or_else(|| Failure::Ours("`local` is no id".to_owned()))?;
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
            // It still runs, and says so: every flow is denied until the registry can be read.
            tracing::error!("the registry cannot be read, so `local` is not registered");
        }
        Ok(())
    }
}

/// What it listens on, and three commands that show what it does.
pub fn print_what_to_try(config: &Config) {
    let listen = &config.proxy.listen;
    let first = |addresses: &[std::net::SocketAddr]| {
        addresses
            .first()
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    let (proxy, dns) = (first(&listen.proxy), first(&listen.dns));
    let ca = config.proxy.certs_dir.join("ca.pem");
    let ca = ca.display();
    let (dns_host, dns_port) = dns.rsplit_once(':').unwrap_or((&dns, "53"));
    println!(
        "unified-proxy listens on
  proxy  http://{proxy}
  dns    {dns} (UDP and TCP)
  admin  {admin}
  CA     {ca}

127.0.0.1 is registered as container `local`. Try:
  curl -x http://{proxy} --cacert {ca} https://api.github.com/zen
  curl -x http://{proxy} --cacert {ca} https://evil.example.com/
  dig @{dns_host} -p {dns_port} evil.example.com
",
        admin = listen.admin.display(),
    );
}
