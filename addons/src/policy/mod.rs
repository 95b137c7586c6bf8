//! Judges flows by the allowlist and their method, then by the operator's rules, then by the
//! addresses that the host resolves to.

mod address_guard;
mod allowlist;
mod hygiene;
mod people;
mod rules;
mod settings;

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::header::ALT_SVC;
use ipnet::IpNet;

use crate::contract::{
    Addon, Addresses, ApprovalLedger, Code, Delegation, Denial, DnsAnswer, DnsQuery, Flow, Host,
    HostSet, Kind, NoLedger, Order, OwnAddresses, Principal, RefusedHosts, Request, Response,
    RestsOnGrant, Scheme, Step, System, Verdict, names,
};
use address_guard::AddressGuard;
use people::{Asking, People, Stop};
use rules::Rules;

pub use people::HOST_RULE;
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
    asks_about_hosts: bool,
    people: People,
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
            asks_about_hosts: settings.asks_about_hosts,
            people: People {
                ledger: Arc::new(NoLedger),
                hold: settings.hold,
            },
        }
    }

    /// Sets the ledger of approvals. Without it, a flow that a person must approve is denied as if
    /// the ledger could not be read.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Arc<dyn ApprovalLedger>) -> Self {
        self.people.ledger = ledger;
        self
    }

    /// Permits the host and the port of a flow. For a [`Delegation`], its own list of hosts
    /// decides. For any other principal, the allowlist decides, which must also permit a WebSocket
    /// if the flow opens one.
    fn permit_destination(&self, flow: &mut Flow, opens_websocket: bool) -> Result<(), Stop> {
        if let Some(delegation) = delegation(flow) {
            let verdict = permit_own_destination(flow, &delegation.system);
            verdict.inspect_err(|_| note_refusal(flow, &delegation, Some(flow.port())))?;
            return Ok(());
        }
        if let Err(denial) = allowlist::permit(flow, &self.guard) {
            self.admit_unlisted(flow, denial)?;
            allowlist::permit(flow, &self.guard)?;
        }
        if let Some(grant) = flow.entry.as_ref().and_then(|entry| entry.grant.clone()) {
            rests_on(flow, grant);
        }
        allowlist::permit_port(flow)?;
        if opens_websocket {
            allowlist::permit_websocket(flow)?;
        }
        Ok(())
    }

    /// Looks for a grant of a host that is on no allowlist. Without one, asks a person, if
    /// `policy.unknown_hosts` says so; otherwise denies as the allowlist does.
    fn admit_unlisted(&self, flow: &mut Flow, denial: Denial) -> Result<(), Stop> {
        let asker = People::asker(flow).filter(|_| self.asks_about_hosts && flow.entry.is_none());
        let Some(container) = asker else {
            return Err(denial.into());
        };
        if !People::may_be_asked_about(container, flow.host()) {
            return Err(denial.into());
        }
        let ledger = &self.people.ledger;
        if let Some(entry) = ledger.entry_of(container, flow.host(), Some(flow.port()), true) {
            flow.admit(entry);
            return Ok(());
        }
        // A rule that denies the host is not asked about.
        if let Err(Stop::Denied(denial)) = self.rules.judge_tunnel(flow) {
            return Err(denial.into());
        }
        Err(Stop::Asks(Box::new(Asking::about_host(flow, denial))))
    }

    fn judge_tunnel(&self, flow: &mut Flow) -> Result<(), Stop> {
        let opens_websocket = flow.kind == Kind::Websocket;
        self.permit_destination(flow, opens_websocket)?;
        let judged = self.rules.judge_tunnel(flow);
        self.unless_granted(flow, judged)
    }

    fn judge_request(&self, flow: &mut Flow, request: &mut Request) -> Result<(), Stop> {
        self.permit_destination(flow, request.websocket)?;
        allowlist::permit_method(request)?;
        let guarded = self.guarded_hosts.contains(flow.host());
        if guarded || self.rules.judges_paths_of(flow.host()) {
            if let Some(why) = request.path.ambiguity() {
                return Err(Denial::malformed(why).into());
            }
            request.path.send_normal();
        }
        let judged = self.rules.judge_request(flow, request);
        self.unless_granted(flow, judged)?;
        hygiene::clean(&mut request.headers);
        Ok(())
    }

    /// Lets a flow pass about which a rule asks, if a grant in memory answers.
    fn unless_granted(&self, flow: &mut Flow, judged: Result<(), Stop>) -> Result<(), Stop> {
        let Err(Stop::Asks(asking)) = judged else {
            return judged;
        };
        let ledger = &self.people.ledger;
        let grant = People::asker(flow)
            .and_then(|container| ledger.find(container, asking.kind, &asking.subject));
        let Some(grant) = grant else {
            return Err(Stop::Asks(asking));
        };
        rests_on(flow, grant.id);
        flow.note(|| format!("allowed by grant {} of a person", grant.id));
        Ok(())
    }

    /// The step of a flow: `judge` judges it, also again after a person has granted what it needs.
    fn step<'a, S: Send + 'a>(
        &'a self,
        flow: &'a mut Flow,
        mut subject: S,
        judge: impl Fn(&Self, &mut Flow, &mut S) -> Result<(), Stop> + Send + 'a,
    ) -> Step<'a> {
        let mut asking = match judge(self, flow, &mut subject) {
            Ok(()) => return Step::PASS,
            Err(Stop::Denied(denial)) => return Err(denial).into(),
            Err(Stop::Asks(asking)) => asking,
        };
        Step::ask_up_to(self.people.limit(), move |room| async move {
            loop {
                self.people.ask(flow, *asking, &room).await?;
                match judge(self, flow, &mut subject) {
                    Ok(()) => return Ok(()),
                    Err(Stop::Denied(denial)) => return Err(denial),
                    Err(Stop::Asks(another)) => asking = another,
                }
            }
        })
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

/// Marks a flow that passes since a person has granted it. A flow that was held names its question.
fn rests_on(flow: &mut Flow, grant: impl Display) {
    flow.put_slot(RestsOnGrant);
    if flow.approval_record().id.is_none() {
        flow.approval_record().set(grant);
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
        self.step(flow, (), |policy, flow, ()| policy.judge_tunnel(flow))
    }

    fn system<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        Self::judge_system(flow).into()
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        self.step(flow, request, |policy, flow, request| {
            policy.judge_request(flow, request)
        })
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
