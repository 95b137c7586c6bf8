//! Suspended calls: a server sent an input request to the client. The client answers it in a
//! retry, which repeats the client's request and adds the answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::Denial;
use addons::json::{Members, Node, canonical, sha256_hex};
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::super::super::event::Params;
use super::super::super::message::Outcome;
use super::super::super::random;
use super::super::call::Call;
use super::super::limits::{Count, Counted, GatewayMetrics, MAX_SUSPENDED, MAX_SUSPENDED_IN_ALL};
use super::super::refusal::over_limit;

/// How long a suspended call waits: a person may have to answer.
const TTL: Duration = Duration::from_secs(5 * 60);

/// Prefix of each `requestState` that the gateway issues. A `requestState` that a server issued is
/// forwarded unchanged.
const PREFIX: &str = "unified-proxy:";

/// Members of params that may differ between a request and its retry.
const NOT_BOUND: [&str; 3] = ["_meta", "inputResponses", "requestState"];

/// The suspended calls of a lease, by `requestState`.
#[derive(Default)]
pub struct Suspended(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    calls: HashMap<String, (Entry, Counted)>,
    ended: bool,
}

pub struct Entry {
    pub call: Call,
    input_requests: Vec<(String, InputRequest)>,
    /// The [`binding`] of the request. That of a retry must be the same.
    binding: Arc<str>,
}

/// An input request: a request of a server to the client.
pub struct InputRequest {
    pub method: Arc<str>,
    pub params: Option<Params>,
    pub reply: oneshot::Sender<Outcome>,
}

/// Whether the gateway issued a `requestState`.
pub fn is_ours(state: &str) -> bool {
    state.starts_with(PREFIX)
}

impl Entry {
    /// Creates an entry for a call with this [`binding`].
    pub fn new(call: Call, binding: &Arc<str>, input_requests: Vec<InputRequest>) -> Self {
        let named = input_requests.into_iter().enumerate();
        Self {
            call,
            input_requests: named
                .map(|(number, input_request)| (format!("request-{}", number + 1), input_request))
                .collect(),
            binding: Arc::clone(binding),
        }
    }

    /// Sends the client's answers to the server; returns `true` if none is left open.
    pub fn answer(&mut self, mut answers: HashMap<String, Box<RawValue>>) -> bool {
        let input_requests = std::mem::take(&mut self.input_requests);
        for (key, input_request) in input_requests {
            match answers.remove(&key) {
                // The server may have stopped waiting.
                Some(answer) => drop(input_request.reply.send(Ok(answer))),
                None if input_request.reply.is_closed() => {}
                None => self.input_requests.push((key, input_request)),
            }
        }
        self.input_requests.is_empty()
    }

    fn input_required(&self, state: &str) -> Result<Box<RawValue>, Denial> {
        let requests = self.input_requests.iter().map(|(key, input_request)| {
            let method = Value::from(&*input_request.method);
            let params = input_request.params.as_deref().map_or("{}", RawValue::get);
            format!("\"{key}\":{{\"method\":{method},\"params\":{params}}}")
        });
        let requests = requests.collect::<Vec<_>>().join(",");
        let text = format!(
            "{{\"resultType\":\"input_required\",\"inputRequests\":{{{requests}}},\"requestState\":\"{state}\"}}"
        );
        RawValue::from_string(text).map_err(|_| Denial::internal())
    }
}

/// Suspends a call for at most [`TTL`], and returns its `input_required` result. Fails at a limit
/// and after the end of the lease. The call is then dropped, which cancels it at its server.
pub fn suspend(
    calls: &Arc<Suspended>,
    in_all: &Count,
    metrics: &GatewayMetrics,
    entry: Entry,
) -> Result<Box<RawValue>, Denial> {
    let state = format!("{PREFIX}{}", random::token()?);
    let full = |rule, most| {
        metrics.hit("suspended");
        over_limit(rule, most)
    };
    let counted = in_all.enter(MAX_SUSPENDED_IN_ALL, &metrics.suspended);
    let counted = counted.ok_or_else(|| {
        let rule = "MCP calls of all containers that wait for their clients";
        full(rule, MAX_SUSPENDED_IN_ALL)
    })?;
    let result = entry.input_required(&state)?;
    {
        let mut waiting = calls.0.lock();
        if waiting.ended || waiting.calls.len() >= MAX_SUSPENDED {
            let rule = "MCP calls of a container that wait for the client";
            return Err(full(rule, MAX_SUSPENDED));
        }
        waiting.calls.insert(state.clone(), (entry, counted));
    }
    let calls = Arc::downgrade(calls);
    tokio::spawn(async move {
        tokio::time::sleep(TTL).await;
        if let Some(calls) = calls.upgrade() {
            let expired = calls.0.lock().calls.remove(&state);
            drop(expired);
        }
    });
    Ok(result)
}

impl Suspended {
    /// Whether a call is suspended under a state.
    pub fn has(&self, state: &str) -> bool {
        self.0.lock().calls.contains_key(state)
    }

    /// Takes the call that is suspended under a state. `None` if the state is unknown or belongs to
    /// a request with another [`binding`].
    pub fn take(&self, state: &str, binding: &str) -> Option<Entry> {
        let mut waiting = self.0.lock();
        let (entry, _) = waiting.calls.get(state)?;
        if *entry.binding != *binding {
            return None;
        }
        waiting.calls.remove(state).map(|(entry, _counted)| entry)
    }

    /// Cancels all calls, at the end of the lease.
    pub fn end(&self) {
        let mut waiting = self.0.lock();
        waiting.ended = true;
        let calls = std::mem::take(&mut waiting.calls);
        drop(waiting);
        drop(calls);
    }
}

/// Digest of method and params without [`NOT_BOUND`], independent of the order of members. Takes
/// linear time.
pub fn binding(method: &str, params: Option<&RawValue>) -> Arc<str> {
    let text = params.map_or("{}", RawValue::get);
    let bound = Members::parse(text).map(|members| {
        let bound = members.iter().filter(|(key, _)| !NOT_BOUND.contains(key));
        let bound = bound.map(|(key, value)| {
            let node = Node::parse(value);
            (key.into(), node.unwrap_or(Node::Scalar(value.into())))
        });
        canonical(&Node::Object(bound.collect()))
    });
    let bound = bound.unwrap_or_else(|_| text.to_owned());
    sha256_hex(&format!("{method}\0{bound}")).into()
}

#[cfg(test)]
mod tests {
    use addons::contract::Code;
    use prometheus::Registry;
    use testkit::each_row;

    use super::*;

    fn entry() -> (Entry, oneshot::Receiver<Outcome>) {
        let (reply, answer) = oneshot::channel();
        let input_request = InputRequest {
            method: "elicitation/create".into(),
            params: None,
            reply,
        };
        let entry = Entry::new(Call::pending(), &"binding".into(), vec![input_request]);
        (entry, answer)
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_calls_are_bounded_per_lease_and_in_total_and_expire() {
        let metrics = GatewayMetrics::new(&Registry::new()).unwrap();
        let (in_all, mut answers) = (Count::default(), Vec::new());
        let mut put = |lease: &Arc<Suspended>| {
            let (entry, answer) = entry();
            let suspended = suspend(lease, &in_all, &metrics, entry);
            answers.push(answer);
            suspended.map_err(|denial| denial.code())
        };
        let leases: Vec<_> = (0..=MAX_SUSPENDED_IN_ALL / MAX_SUSPENDED)
            .map(|_| Arc::<Suspended>::default())
            .collect();
        let (last, first) = leases.split_last().unwrap();
        for lease in first {
            for _ in 0..MAX_SUSPENDED {
                put(lease).unwrap();
            }
            assert_eq!(put(lease).unwrap_err(), Code::RateLimited);
        }
        assert_eq!(put(last).unwrap_err(), Code::RateLimited);
        assert_eq!(metrics.suspended.get() as usize, MAX_SUSPENDED_IN_ALL);
        // The end of a lease releases the places of its calls. The TTL releases those of the other
        // leases.
        first[0].end();
        assert!(put(last).is_ok());
        assert!(put(&first[0]).is_err());
        tokio::time::sleep(TTL + Duration::from_secs(1)).await;
        assert_eq!(metrics.suspended.get(), 0);
        for answer in answers {
            assert!(
                answer.await.is_err(),
                "the server of a dropped call gets an error"
            );
        }
    }

    #[test]
    fn a_retry_must_have_the_same_method_and_params_in_any_order() {
        let bound = |params: &str| {
            let params = RawValue::from_string(params.to_owned()).unwrap();
            binding("tools/call", Some(&params))
        };
        let first = bound(
            "{\"name\":\"a\",\"arguments\":{\"x\":1,\"y\":[{\"p\":1,\"q\":2}]},\"_meta\":{\"n\":1}}",
        );
        each_row(
            [
                (
                    "{\"arguments\":{\"y\":[{\"q\":2,\"p\":1}],\"x\":1},\"name\":\"a\",\"inputResponses\":{},\"requestState\":\"s\"}",
                    true,
                ),
                (
                    "{\"name\":\"b\",\"arguments\":{\"x\":1,\"y\":[{\"p\":1,\"q\":2}]}}",
                    false,
                ),
                (
                    "{\"name\":\"a\",\"arguments\":{\"x\":2,\"y\":[{\"p\":1,\"q\":2}]}}",
                    false,
                ),
                (
                    "{\"name\":\"a\",\"arguments\":{\"x\":1,\"y\":[{\"p\":1}]}}",
                    false,
                ),
                ("{\"name\":\"a\"}", false),
                ("[]", false),
            ],
            |(params, same)| assert_eq!(bound(params) == first, same, "{params}"),
        );
        assert_ne!(bound("[1]"), bound("[2]"));
        assert_ne!(binding("tools/call", None), binding("prompts/get", None));
    }
}
