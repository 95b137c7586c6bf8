//! One request to one server: translates it to the server's era, lets the chain judge it, sends it,
//! and lets the chain judge the response.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use addons::contract::{
    CallPermit, Code, Denial, Direction, Executing, Fault, Frame, Intercept, RpcError,
};
use addons::mcp::OpenQuestion;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::execution::{Running, exit_code};
use super::judged_call::{JudgedCall, Refused};
use super::params::{Change, Destination, Progress};
use super::readiness::denial_of;
use super::relay::Relay;
use super::results;
use super::target::Target;
use super::{ClientRequest, Core, Era, Event, MountError, Outcome, invalid_params, rpc_error};

/// The longest duration of a call, unless the server's `timeout` is longer. Progress of the server
/// and answers of the client restart the timeout, but never extend a call beyond this limit.
pub(super) const LONGEST_CALL: Duration = Duration::from_secs(15 * 60);

impl Core {
    /// Sends a client's request to a server, with these changes to its params. Returns the
    /// response, translated to the client's era.
    pub(super) async fn forward(
        self: &Arc<Self>,
        request: &ClientRequest,
        target: &Target,
        changes: &[Change<'_>],
    ) -> Outcome {
        let mut attempt = Attempt::default();
        let forwarding = self.try_forward(request, target, changes, &mut attempt);
        forwarding.await?
    }

    /// As [`Self::forward`], but tells errors apart: an error of the server is `Ok(Err(_))`, a
    /// failure is `Err(_)`.
    pub(super) async fn try_forward(
        self: &Arc<Self>,
        request: &ClientRequest,
        target: &Target,
        changes: &[Change<'_>],
        attempt: &mut Attempt,
    ) -> Result<Outcome, Failure> {
        let mut outcome = self.forward_once(request, target, changes, attempt).await?;
        let (client, server) = (request.caller.version, target.pooled.session.version());
        if (client.era(), server.era()) == (Era::Legacy, Era::Modern) {
            let completing = self.answer_inputs(request, target, changes, outcome, attempt);
            outcome = completing.await?;
        }
        Ok(results::for_client(
            client,
            server,
            &request.method,
            outcome,
        ))
    }

    /// Sends a request to a server, without answering `input_required`.
    pub(super) async fn forward_once(
        self: &Arc<Self>,
        request: &ClientRequest,
        target: &Target,
        changes: &[Change<'_>],
        attempt: &mut Attempt,
    ) -> Result<Outcome, Failure> {
        let (call, progress) = self.admit(request, target, changes, attempt).await?;
        let JudgedCall { permit, mut open } = call;
        if let Some(executing) = open.live.flow.find_slot::<Executing>() {
            *request.events.call.executing.lock() = Some(executing.clone());
        }
        let chain = Arc::clone(&open.live.chain);
        let caller = &request.caller;
        let relay = Relay {
            core: self,
            chain: &chain,
            caller,
            server: &target.settings.name,
            client: &request.events,
            definition: target.definition.as_ref(),
            progress: progress.as_ref(),
            session: Some(&target.pooled.session),
        };
        let context = request.events.call.context.get();
        if let Some(context) = context {
            context.started();
        }
        let running = Running::begin(&self.metrics, target);
        let response = exchange(target, permit, &relay).await;
        if let Some(context) = context {
            context.ended(exit_code(&response));
        }
        if let Some(running) = running {
            running.end(&response);
        }
        let denial = |error| denial_of(&caller.container, &target.settings, error);
        let outcome = open.conclude(response.map_err(denial)).await?;
        let size = outcome.as_ref().map_or(0, |result| result.get().len());
        let counters = &open.live.counters;
        counters.bytes_out.fetch_add(size as u64, Ordering::Relaxed);
        Ok(outcome)
    }

    /// Begins the flow of a request, translates the request to the server's era, and has the chain
    /// judge it. Returns the progress tokens with the permitted request.
    async fn admit(
        self: &Arc<Self>,
        request: &ClientRequest,
        target: &Target,
        changes: &[Change<'_>],
        attempt: &mut Attempt,
    ) -> Result<(JudgedCall, Option<Progress>), Failure> {
        let (caller, method) = (&request.caller, &request.method);
        let chain = (self.rules)().chain;
        let (server, name) = (&target.settings.name, target.name.as_ref());
        let mut live = match attempt.approved.take() {
            Some(approved) if request.events.call.left.is_cancelled() => {
                return Err(approved.end().into());
            }
            Some(approved) => {
                let Refused { mut live, .. } = *approved;
                live.chain = chain;
                live
            }
            None => self.flow(&chain, caller, method, Some(server), name),
        };
        if let Some(executing) = request.events.call.executing.lock().clone() {
            live.flow.put_slot(executing);
        }
        let context = request.events.call.context.get();
        if let Some(context) = context {
            live.flow.put_slot(Intercept {
                context: Some(context.to_json().into()),
                handover: context.handover.clone(),
                is_at_gateway: true,
                ..Intercept::default()
            });
        }
        let before = context.and_then(|context| context.trace());
        let destination = Destination {
            caller,
            version: target.pooled.session.version(),
            log_level: self.log_level(caller),
            trace: request.trace.as_ref().or(before.as_ref()),
        };
        let made = destination.params(request.params.as_deref(), changes, true);
        let Some(made) = made else {
            live.answered(400);
            live.complete();
            return Err(invalid_params("params is not an object").into());
        };
        let sent = made.params.as_ref().map_or(0, |params| params.get().len());
        let counters = &live.counters;
        counters.bytes_in.store(sent as u64, Ordering::Relaxed);
        let (direction, params) = (Direction::ToServer, made.params);
        let mut frame = Frame::request(direction, target.judged(), Arc::clone(method), params);
        frame.definition.clone_from(&target.definition);
        if frame.definition.is_none() {
            frame.tools = self.server_tools(caller, server).await;
        }
        match JudgedCall::judge(live, frame).await {
            Ok(call) => Ok((call, made.progress)),
            Err(refused) if refused.live.flow.find_slot::<OpenQuestion>().is_some() => {
                let denial = refused.denial.clone();
                attempt.asked = Some(refused);
                Err(denial.into())
            }
            Err(refused) => Err(refused.end().into()),
        }
    }
}

/// What a call carries from one judgement of its request to the next.
#[derive(Default)]
pub(super) struct Attempt {
    /// The request was not sent, since a person must decide about it first: an [`OpenQuestion`] is
    /// in its flow.
    pub asked: Option<Box<Refused>>,
    /// The same request after a person approved it. The denial is for a call that is not sent.
    pub approved: Option<Box<Refused>>,
}

/// Why the client gets an error of the gateway instead of the server's response.
pub(super) enum Failure {
    /// The chain denied the request or the response, or the server failed.
    Denied(Denial),
    /// The gateway refused the request.
    Refused(RpcError),
}

impl Failure {
    /// Whether the server failed, so that another server may be tried.
    pub fn is_of_server(&self) -> bool {
        match self {
            Self::Denied(denial) => {
                let code = denial.code();
                code.fault() == Fault::Upstream && code != Code::PolicyBackendReservedMisuse
            }
            Self::Refused(_) => false,
        }
    }
}

impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Denied(denial) => rpc_error(&denial),
            Failure::Refused(error) => error,
        }
    }
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        Self::Refused(error)
    }
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

/// Sends a request, and relays the events that precede the response.
async fn exchange(
    target: &Target,
    permit: CallPermit,
    relay: &Relay<'_>,
) -> Result<Outcome, MountError> {
    let (sender, mut events) = relay.client.another();
    let mut request = target.pooled.session.request(permit, sender);
    let mut input_requests = FuturesUnordered::new();
    let mut deadline = Deadline::new(target.settings.timeout);
    let mut is_open = true;
    loop {
        let limit = deadline.current(!input_requests.is_empty());
        tokio::select! {
            // The limit comes first: otherwise, a server that sends events without pause would use
            // up the task's budget, and the timer would never fire. Events come before the
            // response, so that events that precede the response are relayed first.
            biased;
            () = sleep_until(limit) => return Err(MountError::TimedOut),
            event = events.recv(), if is_open => match event {
                Some(event) => {
                    if is_progress(&event) {
                        deadline.extend();
                    }
                    if let Some(input_request) = relay.pass_on(event, input_requests.len()).await {
                        input_requests.push(input_request);
                    }
                }
                None => is_open = false,
            },
            Some(()) = input_requests.next() => deadline.extend(),
            outcome = &mut request => {
                // The poll that completed the request may have queued events first.
                while let Ok(event) = events.try_recv() {
                    drop(relay.pass_on(event, input_requests.len()).await);
                }
                return outcome;
            }
        }
    }
}

fn is_progress(event: &Event) -> bool {
    matches!(event, Event::Notification { method, .. } if &**method == "notifications/progress")
}

/// The deadlines of a call.
struct Deadline {
    timeout: Duration,
    /// Extended by progress and by answers of the client.
    soft: Instant,
    /// Never extended.
    hard: Instant,
}

impl Deadline {
    fn new(timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            timeout,
            soft: now + timeout,
            hard: now + timeout.max(LONGEST_CALL),
        }
    }

    /// Restarts the timeout, after progress of the server or an answer of the client.
    fn extend(&mut self) {
        self.soft = Instant::now() + self.timeout;
    }

    /// The current deadline, which depends on whether an input request is open.
    fn current(&self, has_input_request: bool) -> Instant {
        if has_input_request {
            self.hard
        } else {
            self.soft.min(self.hard)
        }
    }
}
