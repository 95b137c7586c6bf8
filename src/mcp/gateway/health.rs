//! `GET /health`: the state of the gateway, the policy engine and the servers.

use std::net::SocketAddr;

use addons::contract::Denial;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::super::mounts::{MountHealth, MountState};
use super::Gateway;
use super::answer::HttpResponse;
use super::visit::Visit;
use crate::http::OriginRequest;

/// Answers with the servers that the client's container sees. A client on this machine without a
/// container, such as a health check, gets all servers. Servers whose runtime is not implemented
/// are left out.
pub async fn answer(
    gateway: &Gateway,
    request: &mut OriginRequest,
) -> Result<HttpResponse, Denial> {
    let peer = request.session.client.peer;
    let is_local = peer.as_ref().is_some_and(is_loopback);
    let mounts = gateway.core.mounts();
    let servers = if is_local && request.session.container.is_none() {
        mounts.health(None)
    } else {
        let visit = Visit::begin(gateway, request).await?;
        mounts.health(Some(&visit.container))
    };
    let (status, body) = report(gateway.core.policies_loaded(), &servers);
    Ok(HttpResponse::json(status, Bytes::from(format!("{body}\n"))))
}

fn is_loopback(peer: &SocketAddr) -> bool {
    addons::contract::fold_address(peer.ip()).is_loopback()
}

/// The HTTP status and the body. The HTTP status is 503 if a policy could not be loaded, regardless
/// of `on_unavailable`, or if there are servers and all of them are dead. The member `status` is
/// `degraded` if the HTTP status is 503, or if any server is degraded, dead, or connecting while hosts
/// are refused to it. `refused_hosts` has the hosts that were refused to each server, if any were.
fn report(policies_loaded: bool, servers: &[MountHealth]) -> (StatusCode, Value) {
    let is_dead = |server: &MountHealth| server.state == MountState::Dead;
    let works = policies_loaded && (servers.is_empty() || !servers.iter().all(is_dead));
    let is_well = |server: &MountHealth| match server.state {
        MountState::Ready => true,
        MountState::Connecting => server.refused_hosts.is_empty(),
        MountState::Degraded | MountState::Dead => false,
    };
    let status = match works && servers.iter().all(is_well) {
        true => "healthy",
        false => "degraded",
    };
    let states = servers.iter();
    let states = states.map(|one| (one.server.to_string(), one.state.as_str().into()));
    let mut body = json!({
        "status": status,
        "checks": { "gateway": true, "interceptor": true, "policy_engine": policies_loaded },
        "servers": states.collect::<Map<_, Value>>(),
    });
    let refused = servers.iter().filter(|one| !one.refused_hosts.is_empty());
    let refused = refused.map(|one| (one.server.to_string(), one.refused_hosts.clone().into()));
    let refused: Map<_, Value> = refused.collect();
    if let (false, Some(body)) = (refused.is_empty(), body.as_object_mut()) {
        body.insert("refused_hosts".to_owned(), refused.into());
    }
    let code = match works {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state() -> impl Strategy<Value = MountState> {
        prop::sample::select(vec![
            MountState::Connecting,
            MountState::Ready,
            MountState::Degraded,
            MountState::Dead,
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        // Feature: unified-sidecar, Property 9: Health Status Aggregation
        #[test]
        fn the_answer_has_the_state_of_each_part_and_a_combined_status(
            policy: bool,
            states in prop::collection::vec(state(), 0..8),
            refused: bool,
        ) {
            let servers: Vec<_> = states.iter().enumerate().map(|(at, state)| MountHealth {
                server: format!("server-{at}").into(),
                state: *state,
                failure: Some("token=s3cret".to_owned()),
                refused_hosts: refused.then(|| "registry.example.com".to_owned()).into_iter().collect(),
                has_no_network: false,
            }).collect();
            let (code, body) = report(policy, &servers);
            prop_assert_eq!(&body["checks"]["gateway"], true);
            prop_assert_eq!(&body["checks"]["policy_engine"], policy);
            prop_assert_eq!(body["servers"].as_object().unwrap().len(), states.len());
            for (at, state) in states.iter().enumerate() {
                prop_assert_eq!(&body["servers"][format!("server-{at}")], state.as_str());
            }
            let all_dead = !states.is_empty() && states.iter().all(|one| *one == MountState::Dead);
            prop_assert_eq!(code == StatusCode::OK, policy && !all_dead);
            let well = |one: &MountState| {
                *one == MountState::Ready || (*one == MountState::Connecting && !refused)
            };
            prop_assert_eq!(body.get("refused_hosts").is_some(), refused && !states.is_empty());
            let healthy = policy && states.iter().all(well);
            prop_assert_eq!(&body["status"], if healthy { "healthy" } else { "degraded" });
            prop_assert!(!body.to_string().contains("s3cret"));
        }
    }
}
