//! Judges flows by the allowlist and their method, then by the operator's rules, then by the
//! addresses that the host resolves to.

mod address_guard;
mod allowlist;
mod hygiene;
mod rules;
mod settings;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::header::ALT_SVC;
use ipnet::IpNet;

use crate::contract::{
    Addon, Addresses, Code, Delegation, Denial, DnsAnswer, DnsQuery, Flow, Host, HostSet, Kind,
    Order, OwnAddresses, Principal, RefusedHosts, Request, Response, Scheme, Step, System, Verdict,
    names,
};
use address_guard::AddressGuard;
use rules::Rules;

pub use rules::Rule;
pub use settings::PolicySettings;
pub use settings::allowlist::{extend_allowlist, parse_entry, read_allowlist};

/// The name of this machine for [`PolicySettings::host_ports`].
pub const LOCALHOST: &str = "localhost";

/// The addon that applies the allowlist, the operator's rules and the address guard.
pub struct Policy {
    guard: AddressGuard,
    host_ports: Vec<u16>,
    guarded_hosts: HostSet,
    rules: Rules,
}

impl Policy {
    /// Builds the addon from its settings. `own` recognises the proxy's own listeners, which are
    /// never dialled.
    #[must_use]
    pub fn new(settings: PolicySettings, own: Arc<dyn OwnAddresses>) -> Self {
        Self {
            guard: AddressGuard::new(settings.allow_private, own),
            host_ports: settings.host_ports,
            guarded_hosts: settings.guarded_hosts,
            rules: Rules(settings.rules),
        }
    }

    /// Permits the host and the port of a flow. For a [`Delegation`], its own list of hosts
    /// decides. For any other principal, the allowlist decides, which must also permit a WebSocket
    /// if the flow opens one.
    fn permit_destination(&self, flow: &mut Flow, opens_websocket: bool) -> Verdict {
        if let Some(delegation) = delegation(flow) {
            let verdict = permit_own_destination(flow, &delegation.system);
            return verdict.inspect_err(|_| note_refusal(flow, &delegation, Some(flow.port())));
        }
        allowlist::permit(flow, &self.guard)?;
        allowlist::permit_port(flow)?;
        match opens_websocket {
            true => allowlist::permit_websocket(flow),
            false => Ok(()),
        }
    }

    fn judge_tunnel(&self, flow: &mut Flow) -> Verdict {
        let opens_websocket = flow.kind == Kind::Websocket;
        self.permit_destination(flow, opens_websocket)?;
        self.rules.judge_tunnel(flow)
    }

    fn judge_request(&self, flow: &mut Flow, request: &mut Request) -> Verdict {
        self.permit_destination(flow, request.websocket)?;
        allowlist::permit_method(request)?;
        let guarded = self.guarded_hosts.contains(flow.host());
        if guarded || self.rules.judges_paths_of(flow.host()) {
            if let Some(why) = request.path.ambiguity() {
                return Err(Denial::malformed(why));
            }
            request.path.send_normal();
        }
        self.rules.judge_request(flow, request)?;
        hygiene::clean(&mut request.headers);
        Ok(())
    }

    /// Judges a flow of the proxy itself by its principal's list of hosts. Denies with an internal
    /// error if the principal is missing, a container or a delegation.
    fn judge_system(flow: &mut Flow) -> Verdict {
        let Some(Principal::System(system)) = &flow.principal else {
            return Err(Denial::internal().rule("system principal"));
        };
        let system = Arc::clone(system);
        permit_own_destination(flow, &system)
    }

    fn judge_addresses(&self, flow: &Flow, addresses: &mut Addresses) -> Verdict {
        let first = addresses.as_slice().first().copied();
        let own_hosts = flow.principal.as_ref().and_then(Principal::own_hosts);
        let trust_private = own_hosts.is_some_and(|system| system.trust_private);
        addresses.retain(|address| {
            self.guard.may_dial(*address)
                || self.is_host_port(flow, *address)
                || (trust_private && self.guard.is_trusted_private(*address))
        });
        match first {
            Some(guarded) if addresses.as_slice().is_empty() => {
                Err(self.address_denied(flow.host(), guarded))
            }
            _ => Ok(()),
        }
    }

    /// Whether a flow to `localhost` or 127.0.0.1, and to no other name that resolves there, dials
    /// one of [`PolicySettings::host_ports`].
    fn is_host_port(&self, flow: &Flow, address: SocketAddr) -> bool {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let is_named = match flow.host() {
            Host::Name(name) => &**name == LOCALHOST,
            Host::Address(address) => *address == loopback,
        };
        is_named && address.ip() == loopback && self.host_ports.contains(&address.port())
    }

    /// Denies a dial to a guarded address. The denial has a hint to open the address only if an
    /// operator can have a service there. It has no hint for a metadata service, a listener of the
    /// proxy, or an address outside the private networks.
    fn address_denied(&self, host: &Host, address: SocketAddr) -> Denial {
        let ip = address.ip();
        let sentence = match host {
            Host::Name(name) => format!("Address not allowed: {name} resolves to {ip}"),
            Host::Address(_) => format!("Address not allowed: {ip}"),
        };
        let denial = Denial::new(Code::AddressNotAllowed, sentence).rule("address guard");
        match self.guard.is_trusted_private(address) {
            true => denial.hint(format!(
                "add {} under upstream.allow_private in proxy.yaml",
                IpNet::from(ip)
            )),
            false => denial,
        }
    }
}

/// The delegation for which the flow runs: its own list of hosts replaces the allowlist. `None` for
/// any other principal.
fn delegation(flow: &Flow) -> Option<Arc<Delegation>> {
    match &flow.principal {
        Some(Principal::Delegated(delegation)) => Some(Arc::clone(delegation)),
        _ => None,
    }
}

/// Records the flow's host among those that were refused to a delegation, for the operator.
fn note_refusal(flow: &Flow, delegation: &Delegation, port: Option<u16>) {
    let refused = delegation.lease.state_or_init(RefusedHosts::default);
    refused.add(&delegation.system.name, flow.host(), port);
}

/// Permits the hosts and ports of a principal's list over TLS. Permits them in clear text only if
/// the principal trusts private addresses.
fn permit_own_destination(flow: &mut Flow, system: &System) -> Verdict {
    let is_safe = flow.scheme() == Scheme::Https || system.trust_private;
    let is_listed = own_ports(flow, system).contains(&flow.port());
    judge_own_host(flow, system, is_safe && is_listed)
}

/// Records that the principal's list decides, and denies the flow unless the list permits it.
fn judge_own_host(flow: &mut Flow, system: &System, is_permitted: bool) -> Verdict {
    let rule = format!("system: {}", system.name);
    flow.set_rule(rule.as_str());
    if is_permitted {
        return Ok(());
    }
    let sentence = format!("Domain not allowed: {} for {}", flow.host(), system.name);
    Err(Denial::new(Code::DomainNotAllowed, sentence).rule(rule))
}

/// The ports of the flow's host in the principal's list.
fn own_ports(flow: &Flow, system: &System) -> Vec<u16> {
    let hosts = system.hosts.iter();
    let here = hosts.filter(|(host, _)| host == flow.host());
    here.map(|(_, port)| *port).collect()
}

impl Addon for Policy {
    fn name(&self) -> &'static str {
        names::POLICY
    }

    fn order(&self) -> Order {
        Order {
            after: &[names::IDENTITY],
            before: &[names::CREDENTIALS],
        }
    }

    fn tunnel<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        self.judge_tunnel(flow).into()
    }

    fn system<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        Self::judge_system(flow).into()
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        self.judge_request(flow, request).into()
    }

    fn dial<'a>(&'a self, flow: &'a mut Flow, addresses: &'a mut Addresses) -> Step<'a> {
        self.judge_addresses(flow, addresses).into()
    }

    fn response<'a>(&'a self, _flow: &'a mut Flow, response: &'a mut Response) -> Step<'a> {
        // The field would send clients to a protocol, host or port that never passed the chain.
        response.headers.remove(ALT_SVC);
        Step::PASS
    }

    fn dns_query<'a>(&'a self, flow: &'a mut Flow, _query: &'a DnsQuery) -> Step<'a> {
        // A question has no port. The port is judged in the tunnel or request that follows.
        let verdict = match delegation(flow) {
            Some(delegation) => {
                let is_listed = !own_ports(flow, &delegation.system).is_empty();
                let verdict = judge_own_host(flow, &delegation.system, is_listed);
                verdict.inspect_err(|_| note_refusal(flow, &delegation, None))
            }
            None => allowlist::permit(flow, &self.guard),
        };
        verdict.into()
    }

    fn dns_answer<'a>(&'a self, flow: &'a mut Flow, answer: &'a mut DnsAnswer) -> Step<'a> {
        let own_ports = delegation(flow).map(|delegation| own_ports(flow, &delegation.system));
        let listed = flow.entry.as_ref().map_or(&[][..], |entry| &entry.ports);
        let ports = own_ports.as_deref().unwrap_or(listed);
        answer
            .addresses
            .retain(|address| self.guard.may_answer(*address, ports));
        Step::PASS
    }
}

#[cfg(test)]
mod tests;
