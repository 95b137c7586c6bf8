//! Identifies the container of a flow by the flow's source, and denies a flow that claims another
//! container's id.

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;

use crate::contract::{
    Code, Container, Containers, Denial, Flow, Identified, Identify, Order, Request, Verdict, names,
};
use crate::header_names::{folds_to, remove_fields};

const CONTAINER_ID: &str = "x-container-id";

/// Finds the container behind a flow, and denies every flow that has none.
pub struct Identity {
    containers: Arc<dyn Containers>,
}

impl Identity {
    /// Builds the addon. `containers` finds the container of a source.
    #[must_use]
    pub fn new(containers: Arc<dyn Containers>) -> Self {
        Self { containers }
    }

    /// Admits a flow if its lease has neither expired nor ended, and if the flow claims no other
    /// container's id. `claimed` is the id in the request's head. Both `claimed` and
    /// `flow.claimed_id` must be `None` or the container's id. Removes an expired lease.
    fn admit(&self, flow: &Flow, container: &Arc<Container>, claimed: Option<&str>) -> Verdict {
        // A flow that is judged again may have begun long ago.
        if container.expired(flow.at.max(SystemTime::now()).into()) {
            self.containers.expire(container);
            let sentence = "Container registration expired";
            return Err(Denial::new(Code::RegistrationExpired, sentence)
                .with("container_id", container.id.as_str())
                .hint(format!("register container {} again", container.id)));
        }
        if container.has_ended() {
            return Err(Denial::unknown_source(flow.client.source.as_ref()));
        }
        check_claim(flow.claimed_id.as_deref(), container)?;
        flow.note(|| format!("container {} at its registered source", container.id));
        check_claim(claimed, container)
    }

    fn find(&self, flow: &Flow) -> Result<Arc<Container>, Denial> {
        let Some(source) = &flow.client.source else {
            let sentence = "Cannot determine client IP";
            return Err(Denial::new(Code::ClientAddressUnknown, sentence));
        };
        self.containers
            .find(source)
            .map_err(|_unavailable| registry_unavailable())?
            .ok_or_else(|| Denial::unknown_source(Some(source)))
    }
}

impl Identify for Identity {
    fn name(&self) -> &'static str {
        names::IDENTITY
    }

    fn order(&self) -> Order {
        Order {
            before: &[names::RATE_LIMIT, names::POLICY, names::CREDENTIALS],
            ..Order::default()
        }
    }

    fn identify(&self, flow: &Flow, request: Option<&mut Request>) -> Identified {
        let claimed = request.and_then(|request| take_claimed_id(&mut request.headers));
        let Some(principal) = &flow.principal else {
            return match self.find(flow) {
                // `principal` is set even if the verdict is a denial, so that the audit names the
                // container.
                Ok(container) => Identified {
                    verdict: self.admit(flow, &container, claimed.as_deref()),
                    principal: Some(container.into()),
                },
                Err(denial) => Identified {
                    verdict: Err(denial),
                    principal: None,
                },
            };
        };
        let verdict = match principal.lease() {
            // Flows without a container are the proxy's own. They pass the phases `system`, `dial`
            // and `response`, none of which calls `identify`.
            None => Err(Denial::unknown_source(flow.client.source.as_ref())),
            Some(_) if !self.containers.available() => Err(registry_unavailable()),
            Some(lease) => self.admit(flow, lease, claimed.as_deref()),
        };
        Identified {
            verdict,
            principal: None,
        }
    }
}

fn take_claimed_id(headers: &mut HeaderMap) -> Option<Box<str>> {
    let claimed = claimed_id(headers);
    if claimed.is_some() {
        remove_fields(headers, |name| folds_to(name, CONTAINER_ID));
    }
    claimed
}

/// Returns the id that `X-Container-Id` claims, also if the field name has `_` in place of `-`;
/// `None` without such a field. Differing values are joined with commas. Joined values match no
/// container, since an id cannot contain a comma.
#[must_use]
pub fn claimed_id(headers: &HeaderMap) -> Option<Box<str>> {
    let mut values = headers
        .iter()
        .filter(|(name, _)| folds_to(name.as_str(), CONTAINER_ID))
        .map(|(_, value)| String::from_utf8_lossy(value.as_bytes()));
    let mut claimed = values.next()?.into_owned();
    for value in values {
        if value != claimed.as_str() {
            claimed.push(',');
            claimed.push_str(&value);
        }
    }
    Some(claimed.into())
}

fn check_claim(claimed: Option<&str>, container: &Container) -> Verdict {
    if claimed.is_none_or(|claimed| claimed == container.id.as_str()) {
        return Ok(());
    }
    Err(Denial::new(
        Code::ContainerIdMismatch,
        "Container ID mismatch",
    ))
}

fn registry_unavailable() -> Denial {
    Denial::new(Code::RegistryUnavailable, "Registry unavailable")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use testkit::each_row;
    use time::{Duration, OffsetDateTime};

    use super::*;
    use crate::contract::{Kind, OwnedFlow, Principal};
    use crate::fixtures::{self, OneContainer, flow, flow_of, headers, request};

    fn identity(container: &Arc<Container>) -> (Arc<OneContainer>, Identity) {
        let registry = OneContainer::new(Arc::clone(container));
        let identity = Identity::new(Arc::clone(&registry) as Arc<dyn Containers>);
        (registry, identity)
    }

    fn code(identified: Identified) -> Option<Code> {
        identified.verdict.err().map(|denial| denial.code())
    }

    /// The denial codes for a tunnel, a request and a DNS question that `flow` builds; `None` for
    /// an admitted flow.
    fn verdicts(identity: &Identity, flow: impl Fn(Kind) -> OwnedFlow) -> [Option<Code>; 3] {
        let mut asked = request("/", &[]);
        [
            code(identity.identify(&flow(Kind::Tunnel), None)),
            code(identity.identify(&flow(Kind::Http), Some(&mut asked))),
            code(identity.identify(&flow(Kind::Dns), None)),
        ]
    }

    #[test]
    fn the_source_address_names_the_container() {
        let container = fixtures::container("web");
        let (_, identity) = identity(&container);
        let found = identity.identify(&flow(Kind::Tunnel, "api.example.com"), None);
        let Some(Principal::Container(found)) = found.principal else {
            panic!("no container was found");
        };
        assert_eq!(found.id, container.id);
    }

    #[test]
    fn flows_of_unknown_sources_or_without_a_registry_are_denied() {
        let container = fixtures::container("web");
        let (registry, identity) = identity(&container);
        let new = |kind| flow(kind, "api.example.com");
        let unknown = |kind| {
            let mut flow = new(kind);
            flow.start_mut().client.source =
                Some(crate::contract::Source::Address([10, 0, 0, 8].into()));
            flow
        };
        let no_source = |kind| {
            let mut flow = new(kind);
            flow.start_mut().client.source = None;
            flow
        };
        assert_eq!(verdicts(&identity, new), [None; 3]);
        assert_eq!(verdicts(&identity, unknown), [Some(Code::UnknownSource); 3]);
        assert_eq!(
            verdicts(&identity, no_source),
            [Some(Code::ClientAddressUnknown); 3]
        );
        *registry.readable.lock() = false;
        let known = |kind| flow_of(&container, kind, "api.example.com");
        let unavailable = [Some(Code::RegistryUnavailable); 3];
        assert_eq!(verdicts(&identity, new), unavailable);
        assert_eq!(verdicts(&identity, known), unavailable);
    }

    #[test]
    fn flows_of_an_expired_lease_are_denied_and_the_lease_is_removed() {
        let container = fixtures::container("web");
        container.extend(OffsetDateTime::now_utc() - Duration::seconds(1));
        let (registry, identity) = identity(&container);
        let expired = [Some(Code::RegistrationExpired); 3];
        let new = |kind| flow(kind, "api.example.com");
        let known = |kind| flow_of(&container, kind, "api.example.com");
        assert_eq!(verdicts(&identity, new), expired);
        assert_eq!(verdicts(&identity, known), expired);
        assert_eq!(registry.expirations.load(Ordering::Relaxed), 6);
    }

    /// The first denial after the expiry names the container, later ones the address: both tell the
    /// operator what to register.
    #[test]
    fn denials_name_the_expired_container_and_the_address_of_an_unknown_source() {
        let body = |identity: &Identity, flow: &OwnedFlow| {
            let denial = identity.identify(flow, None).verdict.unwrap_err();
            (
                denial.to_json(),
                denial.edit().unwrap_or_default().to_owned(),
            )
        };
        let container = fixtures::container("web");
        container.extend(OffsetDateTime::now_utc() - Duration::seconds(1));
        let (_, expired) = identity(&container);
        let (denied, edit) = body(&expired, &flow(Kind::Tunnel, "api.example.com"));
        assert_eq!(denied["container_id"], "web", "{denied}");
        assert!(edit.contains("web"), "{edit}");

        let (_, identity) = identity(&fixtures::container("web"));
        each_row(["10.0.0.8", "2001:db8::8"], |address| {
            for kind in [Kind::Tunnel, Kind::Http] {
                let mut flow = flow(kind, "api.example.com");
                let source = crate::contract::Source::Address(address.parse().unwrap());
                flow.start_mut().client.source = Some(source);
                let (denied, edit) = body(&identity, &flow);
                assert_eq!(denied["error"], "Unknown source IP");
                assert_eq!(denied["client"], address);
                assert!(edit.ends_with(&format!("--ip {address}")), "{edit}");
            }
        });
    }

    #[test]
    fn flows_on_connections_of_an_ended_lease_are_denied() {
        let container = fixtures::container("web");
        container.end();
        let (_, identity) = identity(&container);
        let known = |kind| flow_of(&container, kind, "api.example.com");
        assert_eq!(verdicts(&identity, known), [Some(Code::UnknownSource); 3]);
    }

    #[test]
    fn an_id_in_any_spelling_of_x_container_id_must_name_the_container_and_is_not_sent_on() {
        let container = fixtures::container("web");
        let (_, identity) = identity(&container);
        each_row(
            [
                (vec![("x-container-id", "web")], None),
                (
                    vec![("x_container_id", "web"), ("x-container-id", "web")],
                    None,
                ),
                (
                    vec![("x-container-id", "db")],
                    Some(Code::ContainerIdMismatch),
                ),
                (
                    vec![("x-container-id", "")],
                    Some(Code::ContainerIdMismatch),
                ),
                (
                    vec![("x_container-id", "db")],
                    Some(Code::ContainerIdMismatch),
                ),
                (
                    vec![("x-container-id", "web"), ("x-container-id", "db")],
                    Some(Code::ContainerIdMismatch),
                ),
                (
                    vec![("x-container-id", "web"), ("x_container_id", "db")],
                    Some(Code::ContainerIdMismatch),
                ),
            ],
            |(fields, verdict)| {
                let mut request = request("/", &fields);
                let inside = flow(Kind::Http, "api.example.com");
                assert_eq!(
                    code(identity.identify(&inside, Some(&mut request))),
                    verdict
                );
                assert!(request.headers.is_empty(), "{fields:?}");

                let mut connect = flow(Kind::Tunnel, "api.example.com");
                connect.start_mut().claimed_id = claimed_id(&headers(&fields));
                assert_eq!(
                    code(identity.identify(&connect, None)),
                    verdict,
                    "{fields:?}"
                );
            },
        );
    }
}
