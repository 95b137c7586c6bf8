//! Judges a flow's host, port, WebSocket upgrade and method, and its container's security level.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::address_guard::AddressGuard;
use crate::contract::settings::METHODS;
use crate::contract::{Code, Denial, Entry, Flow, Host, Request, Verdict};

/// Permits a flow if its host is on the allowlist and the container's level does not exceed the
/// entry's `max_level`. If the container has `allowed_domains`, the host must match one of them as
/// well.
pub(super) fn permit(flow: &mut Flow, guard: &AddressGuard) -> Verdict {
    let entry = listed(flow).map_err(|denial| match is_guarded(flow, guard) {
        true => denial,
        false => denial.hint(entry_for(flow.host())),
    })?;
    match &entry.grant {
        Some(id) => flow.set_rule(format!("grant {id}")),
        None => flow.set_rule(Arc::clone(&entry.label)),
    }
    let (entry, container) = (listed(flow)?, flow.container()?);
    if !container.allows(flow.host()) {
        let id = &container.id;
        return Err(not_allowed(flow.host())
            .rule(format!("allowed_domains of container {id}"))
            .hint(format!(
                "register container {id} with \"{}\" in its allowed_domains",
                flow.host()
            )));
    }
    let level = container.level();
    if level > entry.max_level {
        let (has, most) = (level.as_str(), entry.max_level.as_str());
        let sentence = format!(
            "Security level exceeded: {} allows at most {most}, the container is at {has}",
            flow.host()
        );
        let denial = Denial::new(Code::LevelExceeded, sentence).rule(entry.label.as_ref());
        return Err(match entry.grant {
            Some(_) => denial,
            None => denial.hint(format!("set max_level: {has} at {}", entry.origin)),
        });
    }
    flow.note(|| match &entry.grant {
        Some(id) => format!("allowed by grant {id} of a person"),
        None => format!("allowed by {} at {}", entry.label, entry.origin),
    });
    Ok(())
}

fn listed(flow: &Flow) -> Result<&Entry, Denial> {
    let entry = flow.entry.as_deref();
    entry.ok_or_else(|| not_listed(flow.host()))
}

pub(super) fn permit_port(flow: &Flow) -> Verdict {
    let entry = listed(flow)?;
    if entry.ports.contains(&flow.port()) {
        return Ok(());
    }
    let sentence = format!("Port not allowed: {}:{}", flow.host(), flow.port());
    Err(Denial::new(Code::PortNotAllowed, sentence)
        .rule(entry.label.as_ref())
        .hint(format!(
            "add {} to the ports at {}",
            flow.port(),
            entry.origin
        )))
}

pub(super) fn permit_method(request: &Request) -> Verdict {
    if !METHODS.contains(&request.method) {
        let sentence = format!("Method not allowed: {}", request.method);
        return Err(Denial::new(Code::MethodNotAllowed, sentence).rule("known methods"));
    }
    Ok(())
}

pub(super) fn permit_websocket(flow: &Flow) -> Verdict {
    let entry = listed(flow)?;
    if entry.websocket {
        return Ok(());
    }
    let sentence = format!("WebSocket not allowed: {}", flow.host());
    Err(Denial::new(Code::WebsocketNotAllowed, sentence)
        .rule(entry.label.as_ref())
        .hint(format!("set websocket: true at {}", entry.origin)))
}

fn not_listed(host: &Host) -> Denial {
    let denial = match host {
        Host::Name(_) => not_allowed(host),
        Host::Address(_) => Denial::new(
            Code::AddressNotAllowed,
            format!("Address not allowed: {host}"),
        ),
    };
    denial.rule("allowlist")
}

/// Whether the guard denies the host even if it is listed. Then a hint to list the host would be
/// useless.
fn is_guarded(flow: &Flow, guard: &AddressGuard) -> bool {
    match flow.host() {
        Host::Name(_) => false,
        Host::Address(ip) => !guard.may_dial(SocketAddr::new(*ip, flow.port())),
    }
}

fn entry_for(host: &Host) -> String {
    // In YAML, an unquoted bracket begins a list.
    let item = match host {
        Host::Address(IpAddr::V6(_)) => format!("'{host}'"),
        _ => host.to_string(),
    };
    format!("add \"- {item}\" under domains in allowlist.yaml")
}

fn not_allowed(host: &Host) -> Denial {
    Denial::new(
        Code::DomainNotAllowed,
        format!("Domain not allowed: {host}"),
    )
}
