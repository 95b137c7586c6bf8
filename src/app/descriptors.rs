//! Divides the file descriptors among the parts of the server. Sandboxes that open many connections
//! must leave enough for the registry, DNS and the admin API.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::dns;

/// The descriptors assumed for a client connection: its own and that of one upstream connection.
const PER_CONNECTION: u64 = 2;

/// Descriptors left for the registry, the audit log, the configuration, certificates and the admin
/// API.
const SPARE: usize = 24;

/// The assumed number of open descriptors at start if /proc is not mounted.
const OPEN_AT_START: usize = 64;

/// The descriptors assumed for a look-up: the resolver may repeat a question from a second socket.
const PER_QUESTION: usize = 2;

/// At most one eighth of the free descriptors is for look-ups of DNS clients, one eighth for
/// look-ups of flows, and one eighth for TCP connections of DNS clients.
const PART_OF_DNS: usize = 8;

/// Limits on the concurrent connections and look-ups of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShares {
    /// Connections of sandboxes.
    pub clients: usize,
    /// Connections to upstreams.
    pub upstreams: usize,
    /// Look-ups at nameservers, for DNS clients and for flows of the proxy.
    pub lookups: usize,
    pub dns: dns::Limits,
}

impl DescriptorShares {
    /// Divides the descriptors that this process may still open.
    pub fn of_this_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open = std::fs::read_dir("/proc/self/fd").map_or(OPEN_AT_START, Iterator::count);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self::of(limit.saturating_sub(open))
    }

    fn of(free: usize) -> Self {
        let free = free.saturating_sub(SPARE);
        let (part, most) = ((free / PART_OF_DNS).max(1), dns::Limits::default());
        let dns = dns::Limits {
            waiting: most.waiting.min((part / PER_QUESTION).max(1)),
            connections: most.connections.min(part),
        };
        // Twice `waiting`, so that flows can make as many look-ups as DNS clients.
        let lookups = dns.waiting * 2;
        let rest = free.saturating_sub(lookups * PER_QUESTION + dns.connections);
        Self {
            clients: (rest / 2).max(1),
            upstreams: (rest / 2).max(1),
            lookups,
            dns,
        }
    }
}

/// Raises the soft limit on open files to the hard limit. The soft limit is usually 1024, for
/// programs that use `select`, which cannot handle higher descriptors. Warns if the soft limit
/// cannot be raised.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the soft limit on open files cannot be raised to the hard limit");
    }
}

/// Warns if the limit on open files in force is too low for `max_connections`.
pub fn warn_if_low(max_connections: usize) {
    let needed = max_connections as u64 * PER_CONNECTION;
    if let Some(open) = getrlimit(Resource::Nofile)
        .current
        .filter(|open| *open < needed)
    {
        tracing::warn!(
            "limits.max_connections of {max_connections} needs {needed} file descriptors, but the limit is {open}: fewer connections are accepted; raise the hard limit (ulimit -Hn), or lower max_connections"
        );
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn taken(shares: DescriptorShares) -> usize {
        let dns = shares.lookups * PER_QUESTION + shares.dns.connections;
        shares.clients + shares.upstreams + dns
    }

    #[test]
    fn the_shares_together_leave_the_spare_descriptors_free() {
        each_row([40, 64, 128, 1_000, 4_096, 65_536, 1 << 20], |free| {
            let shares = DescriptorShares::of(free);
            assert!(taken(shares) + SPARE <= free, "{free}: {shares:?}");
        });
    }

    #[test]
    fn with_many_descriptors_dns_gets_its_default_limits_and_proxy_connections_the_rest() {
        let shares = DescriptorShares::of(1 << 20);
        assert_eq!(shares.dns, dns::Limits::default());
        assert!(shares.clients > 500_000 && shares.upstreams > 500_000);
    }

    #[test]
    fn every_part_gets_a_share_even_without_free_descriptors() {
        each_row([0, 10, SPARE, SPARE + 1], |free| {
            let DescriptorShares {
                clients,
                upstreams,
                lookups,
                dns,
            } = DescriptorShares::of(free);
            let parts = [clients, upstreams, lookups, dns.waiting, dns.connections];
            assert!(parts.iter().all(|part| *part > 0));
        });
    }
}
