//! The ordered chain of addons that every flow passes.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::addon::{Addon, Step, StepKind};
use super::denial::{Denial, Verdict};
use super::endpoint::Endpoint;
use super::entry::{Entry, EntryMap};
use super::flow::{Flow, FlowStart, Kind, Subject};
use super::host::Host;
use super::identify::{Identified, Identify};
use super::judge::{Buffered, Judges};
use super::ledger::ApprovalLedger;
use super::mcp::{CallPermit, Frame, McpSubject};
use super::message::{DnsAnswer, DnsQuery, Request, Response};
use super::order::{Link, OrderError, check_order};
use super::outcome::Outcome;
use super::permit::{Addresses, Permit, ResolvePermit};
use super::principal::{Client, Principal};
use super::waits::{Limits, Waits, settle};

/// The links in their checked order, and the allowlist in which a new flow finds its entry.
/// Immutable: a reload builds another chain, and a flow keeps the chain that it began with.
pub struct Chain {
    links: Arc<[Link]>,
    allowlist: Arc<EntryMap<Arc<Entry>>>,
    /// Finds the hosts that people have granted, and whether people are asked about unlisted hosts.
    ledger: Option<(Arc<dyn ApprovalLedger>, bool)>,
    deadline: Duration,
    /// Each waiting flow of a container takes a permit, except look-ups.
    waits: Limits,
}

impl Chain {
    /// Builds the chain, or returns all violations of its order. `deadline` is how long the steps
    /// without their own limit may wait together in one phase, counted from the first such wait.
    pub fn new(links: Vec<Link>, deadline: Duration) -> Result<Self, Vec<OrderError>> {
        let errors = check_order(&links);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            links: links.into(),
            allowlist: Arc::default(),
            ledger: None,
            deadline,
            waits: Limits::of_all(),
        })
    }

    /// Sets the allowlist in which a new flow finds its entry.
    #[must_use]
    pub fn with_allowlist(mut self, allowlist: Arc<EntryMap<Arc<Entry>>>) -> Self {
        self.allowlist = allowlist;
        self
    }

    /// Sets the ledger in which a container's flow to an unlisted host finds its entry. `asks`:
    /// people are asked about such hosts.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Arc<dyn ApprovalLedger>, asks: bool) -> Self {
        self.ledger = Some((ledger, asks));
        self
    }

    /// The addons' names, in their order.
    pub fn names(&self) -> Vec<&'static str> {
        self.links.iter().map(Link::name).collect()
    }

    /// The start of a flow to an upstream, with the allowlist entry of its host.
    pub fn to_upstream(&self, kind: Kind, client: Client, endpoint: Endpoint) -> FlowStart {
        let entry = self.allowlist.find(&endpoint.host).cloned();
        FlowStart::new(kind, client, Subject::Upstream(endpoint), entry)
    }

    /// The start of a flow for a DNS question, with the allowlist entry of the name.
    pub fn for_name(&self, client: Client, name: Host) -> FlowStart {
        let entry = self.allowlist.find(&name).cloned();
        FlowStart::new(Kind::Dns, client, Subject::Name(name), entry)
    }

    /// The start of a flow for an MCP message.
    pub fn for_mcp(&self, client: Client, subject: McpSubject) -> FlowStart {
        FlowStart::new(Kind::Mcp, client, Subject::Mcp(subject), None)
    }

    /// Judges the destination of a CONNECT, or of a request outside a tunnel.
    pub async fn tunnel(&self, flow: &mut Flow) -> Result<ResolvePermit, Denial> {
        let links = self.links.iter();
        self.run(links, flow, &mut (), by_source, |addon, flow, ()| {
            addon.tunnel(flow)
        })
        .await?;
        Ok(ResolvePermit::mint(flow))
    }

    /// Judges a request of a [`Principal::System`](super::Principal::System), in place of `tunnel`
    /// and `request`.
    pub async fn system(&self, flow: &mut Flow) -> Result<ResolvePermit, Denial> {
        let links = self.links.iter();
        self.run(links, flow, &mut (), no_identity, |addon, flow, ()| {
            addon.system(flow)
        })
        .await?;
        Ok(ResolvePermit::mint(flow))
    }

    /// Judges a request's head.
    pub async fn request(
        &self,
        flow: &mut Flow,
        request: &mut Request,
    ) -> Result<ResolvePermit, Denial> {
        let identify = |identity: &dyn Identify, flow: &Flow, request: &mut Request| {
            Some(identity.identify(flow, Some(request)))
        };
        let links = self.links.iter();
        self.run(links, flow, request, identify, <dyn Addon>::request)
            .await?;
        Ok(ResolvePermit::mint(flow))
    }

    /// Passes a buffered body through its judges in turn, with a new deadline for each. Returns the
    /// bytes to send.
    pub async fn judge<Head>(
        &self,
        flow: &mut Flow,
        head: &mut Head,
        judges: Judges<Head>,
        body: Buffered,
    ) -> Result<Bytes, Denial> {
        let waits = Waits::of(flow, &self.waits);
        let judging = judges.judge(flow, head, body, self.deadline);
        let judged = Box::pin(waits.hold(judging, None)).await;
        judged.unwrap_or_else(|full| Err(full.denial(flow)))
    }

    /// Judges the addresses of the flow's host. The only place where a [`Permit`] is minted. A flow
    /// that all addons pass is still denied, with an internal error, if no address is left or if
    /// the flow has no principal.
    pub async fn dial(
        &self,
        flow: &mut Flow,
        addresses: Vec<SocketAddr>,
    ) -> Result<Permit, Denial> {
        let mut addresses = Addresses::new(addresses);
        let links = self.links.iter();
        self.run(links, flow, &mut addresses, no_identity, <dyn Addon>::dial)
            .await?;
        Permit::mint(flow, addresses).ok_or_else(Denial::internal)
    }

    /// Judges a response's head, last addon first.
    pub async fn response(&self, flow: &mut Flow, response: &mut Response) -> Verdict {
        let links = self.links.iter().rev();
        self.run(links, flow, response, no_identity, <dyn Addon>::response)
            .await
    }

    /// Judges a DNS question.
    pub async fn dns_query(
        &self,
        flow: &mut Flow,
        query: &mut DnsQuery,
    ) -> Result<ResolvePermit, Denial> {
        let links = self.links.iter();
        self.run(links, flow, query, by_source, |addon, flow, query| {
            addon.dns_query(flow, query)
        })
        .await?;
        Ok(ResolvePermit::mint(flow))
    }

    /// Judges a DNS answer, last addon first.
    pub async fn dns_answer(&self, flow: &mut Flow, answer: &mut DnsAnswer) -> Verdict {
        let links = self.links.iter().rev();
        self.run(links, flow, answer, no_identity, <dyn Addon>::dns_answer)
            .await
    }

    /// Judges an MCP request or notification. The only place where a [`CallPermit`] is minted.
    pub async fn mcp_request(
        &self,
        flow: &mut Flow,
        mut frame: Frame,
    ) -> Result<CallPermit, Denial> {
        let links = self.links.iter();
        self.run(links, flow, &mut frame, by_source, <dyn Addon>::mcp_request)
            .await?;
        CallPermit::mint(flow.mcp(), flow.known_container(), frame).ok_or_else(Denial::internal)
    }

    /// Judges the response to an MCP request, last addon first.
    pub async fn mcp_response(&self, flow: &mut Flow, frame: &mut Frame) -> Verdict {
        let links = self.links.iter().rev();
        self.run(links, flow, frame, no_identity, <dyn Addon>::mcp_response)
            .await
    }

    /// Judges the response to a tool call that was not sent by the gateway, first addon first: the
    /// flow begins with it.
    pub async fn mcp_report(&self, flow: &mut Flow, frame: &mut Frame) -> Verdict {
        let links = self.links.iter();
        self.run(links, flow, frame, by_source, <dyn Addon>::mcp_report)
            .await
    }

    /// Reports the end of the flow to every addon, also after one of them panics.
    pub(super) fn finished(&self, flow: &Flow, outcome: &Outcome) {
        for link in self.links.iter() {
            if let Link::Addon(addon) = link {
                let _ = catch_unwind(AssertUnwindSafe(|| addon.finished(flow, outcome)));
            }
        }
    }

    /// Calls `identify` of the identity link, and `hook` of each addon, in turn. `dyn Addon` is
    /// `'static` here, so that the path of a method can be the hook.
    async fn run<'c, S>(
        &'c self,
        links: impl Iterator<Item = &'c Link>,
        flow: &mut Flow,
        subject: &mut S,
        identify: impl Fn(&dyn Identify, &Flow, &mut S) -> Option<Identified>,
        hook: impl for<'a> Fn(&'a (dyn Addon + 'static), &'a mut Flow, &'a mut S) -> Step<'a>,
    ) -> Verdict {
        let mut deadline = None;
        let mut waits = Waits::of(flow, &self.waits);
        for link in links {
            flow.set_note_author(|| link.name());
            let settled = match link {
                Link::Identity(identity) => {
                    let verdict = set_principal(&**identity, &identify, flow, subject);
                    self.find_granted_host(flow);
                    waits = Waits::of(flow, &self.waits);
                    Ok(verdict)
                }
                Link::Addon(addon) => match call(&hook, &**addon, flow, subject).0 {
                    StepKind::Ready(verdict) => Ok(verdict),
                    StepKind::Wait {
                        future,
                        limit,
                        room,
                    } => {
                        let until = match limit {
                            Some(limit) => Instant::now() + limit,
                            None => *deadline.get_or_insert_with(|| Instant::now() + self.deadline),
                        };
                        // Boxed, since few steps wait. An unboxed wait would enlarge the future of
                        // every request.
                        Box::pin(waits.hold(settle(future, until), room.as_ref())).await
                    }
                },
            };
            let verdict = settled.unwrap_or_else(|full| Err(full.denial(flow)));
            verdict.map_err(|denial| denial.by(link.name()))?;
        }
        Ok(())
    }

    /// Sets the entry of a container's flow to an unlisted host that a person has granted.
    fn find_granted_host(&self, flow: &mut Flow) {
        let (Some((ledger, asks)), None) = (&self.ledger, &flow.entry) else {
            return;
        };
        let Some(Principal::Container(container)) = &flow.principal else {
            return;
        };
        let port = match &flow.subject {
            Subject::Upstream(endpoint) => Some(endpoint.port),
            // A question has no port.
            Subject::Name(_) => None,
            Subject::Mcp(_) => return,
        };
        flow.start.entry = ledger.entry_of(container, flow.host(), port, *asks);
    }
}

/// The `identify` of phases that set the principal but have no request's head.
fn by_source<S>(identity: &dyn Identify, flow: &Flow, _: &mut S) -> Option<Identified> {
    Some(identity.identify(flow, None))
}

/// The `identify` of phases that leave the principal as it is.
fn no_identity<S>(_: &dyn Identify, _: &Flow, _: &mut S) -> Option<Identified> {
    None
}

/// Calls the identity link and sets the principal that the link returns. A panic denies.
fn set_principal<S>(
    identity: &dyn Identify,
    identify: &impl Fn(&dyn Identify, &Flow, &mut S) -> Option<Identified>,
    flow: &mut Flow,
    subject: &mut S,
) -> Verdict {
    let identified = catch_unwind(AssertUnwindSafe(|| identify(identity, flow, subject)));
    let Some(identified) = identified.map_err(|_panic| Denial::panicked())? else {
        return Ok(());
    };
    if identified.principal.is_some() {
        flow.start.principal = identified.principal;
    }
    identified.verdict
}

/// Calls a hook. A panic denies.
fn call<'a, S>(
    hook: &impl Fn(&'a (dyn Addon + 'static), &'a mut Flow, &'a mut S) -> Step<'a>,
    addon: &'a (dyn Addon + 'static),
    flow: &'a mut Flow,
    subject: &'a mut S,
) -> Step<'a> {
    let arguments = (flow, subject);
    let called = catch_unwind(AssertUnwindSafe(move || {
        // Moved out, not reborrowed: the step borrows from both for `'a`.
        let (flow, subject) = arguments;
        hook(addon, flow, subject)
    }));
    called.unwrap_or_else(|_panic| Err(Denial::panicked()).into())
}
