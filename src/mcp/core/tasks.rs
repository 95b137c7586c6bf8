//! Tasks of the gateway: a client that declares their extension polls the outcome of a call about
//! which a person must decide, instead of waiting for it.

use std::sync::Arc;

use addons::contract::{LiveFlow, RpcError, Verdict};
use addons::mcp::OpenQuestion;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::super::error::{MISSING_CLIENT_CAPABILITY, raw};
use super::super::random;
use super::super::tasks::TASKS_EXTENSION;
use super::judged_call::Refused;
use super::lease::Lease;
use super::results::object;
use super::task::Task;
use super::tools::ToolNames;
use super::{
    ClientRequest, Core, MessageReservation, Outcome, invalid_params, members, protocol_error,
    rpc_error,
};

impl Core {
    /// Returns a task for a call about which a person must decide, and runs the call in the
    /// background. A call that cannot wait is denied.
    pub(super) fn begin_task(
        self: &Arc<Self>,
        request: &ClientRequest,
        called: ToolNames,
        mut asked: Box<Refused>,
    ) -> Outcome {
        let container = &request.caller.container;
        let lease = Lease::of(container);
        let begun = (|| {
            let question = asked.live.flow.take_slot::<OpenQuestion>()?;
            let wait = Arc::clone(&lease.waits).try_acquire_owned().ok()?;
            let permits = (wait, self.begin(container).ok()?);
            let task = Task::new(random::token().ok()?, &question);
            Some((question, task, permits))
        })();
        let Some((question, task, permits)) = begun else {
            return Err(rpc_error(&asked.end()));
        };
        // Nobody takes the events of the call: a server that asks its client gets an error. The
        // client reads nothing while it polls.
        let (mut events, _) = request.events.another();
        events.call = Arc::default();
        let request = ClientRequest {
            caller: Arc::clone(&request.caller),
            method: Arc::clone(&request.method),
            params: request.params.clone(),
            tool: None,
            trace: request.trace.clone(),
            events: events.clone(),
        };
        let (tasks, ended) = (Arc::clone(&lease.tasks), container.ended().clone());
        tasks.add(&task);
        let created = task.created();
        let core = Arc::clone(self);
        self.runtime.spawn(async move {
            let outcome = tokio::select! {
                () = ended.cancelled() => None,
                () = task.cancelled.cancelled() => None,
                outcome = core.run_task(request, &question, (called, asked), &task) => Some(outcome),
            };
            if let Some(outcome) = outcome {
                let held = events.hold(outcome);
                let (outcome, held) = held.unwrap_or_else(|denial| {
                    (Err(rpc_error(&denial)), MessageReservation::default())
                });
                task.finish(outcome, held);
            }
            drop((core, question, events, permits));
            ended.run_until_cancelled(task.kept()).await;
            tasks.remove(&task);
        });
        created
    }

    /// Waits until a person decides, and makes the call after an approval.
    async fn run_task(
        self: &Arc<Self>,
        request: ClientRequest,
        question: &OpenQuestion,
        (called, mut asked): (ToolNames, Box<Refused>),
        task: &Task,
    ) -> Outcome {
        match decision(question, &mut asked.live, task).await {
            Some(Ok(())) => {
                task.approved();
                asked.denial = question.unsent();
                // A call is sent only while its client polls.
                let call = Arc::clone(&request.events.call);
                let leaving = async {
                    task.unattended().await;
                    call.left.cancel();
                    std::future::pending().await
                };
                return tokio::select! {
                    biased;
                    outcome = Box::pin(self.call_approved(&request, &called, asked)) => outcome,
                    outcome = leaving => outcome,
                };
            }
            Some(Err(denial)) => asked.denial = denial,
            None => {}
        }
        Err(rpc_error(&asked.end()))
    }

    /// Answers `tasks/get`, `tasks/update` and `tasks/cancel`. An update has no effect, since the
    /// gateway's tasks ask for no input.
    pub(super) async fn task_request(self: &Arc<Self>, request: &ClientRequest) -> Outcome {
        if !request.caller.takes_tasks {
            return self.refuse_judged(request, needs_tasks()).await;
        }
        let answer = async {
            let task = named_task(request)?;
            match &*request.method {
                "tasks/get" => return task.poll(),
                "tasks/cancel" => task.cancel(),
                _ => {}
            }
            object(request.caller.version, &[], false)
        };
        self.respond(request, answer).await
    }
}

/// Waits until a person decides, while the client polls. A client that has stopped polling leaves
/// the question, so that an approval is for the next equal call, or for this task once it is polled
/// again. `None` if the server stops.
async fn decision(question: &OpenQuestion, live: &mut LiveFlow, task: &Task) -> Option<Verdict> {
    loop {
        let deciding = question.decision(&mut live.flow, question.ttl());
        tokio::select! {
            biased;
            decided = deciding => match decided {
                None if task.ends <= Instant::now() => return Some(Err(question.expired())),
                decided => return decided,
            },
            () = task.unattended() => {}
        }
        if timeout_at(task.ends, task.polled.notified()).await.is_err() {
            return Some(Err(question.expired()));
        }
    }
}

/// The task that a request names. A task of another lease is unknown, like one that does not exist.
fn named_task(request: &ClientRequest) -> Result<Arc<Task>, RpcError> {
    let members = members(request)?;
    let id = members.text("taskId");
    let id = id.ok_or_else(|| invalid_params("the id of the task is missing"))?;
    let task = Lease::of(&request.caller.container).tasks.find(&id);
    let sentence = "Task not found: it has expired, or the gateway was restarted; repeat the call";
    task.ok_or_else(|| invalid_params(sentence))
}

/// The error for a client that uses tasks without declaring them.
fn needs_tasks() -> RpcError {
    let required = json!({ "extensions": { TASKS_EXTENSION: {} } });
    RpcError {
        data: raw(json!({ "requiredCapabilities": required })),
        ..protocol_error(
            MISSING_CLIENT_CAPABILITY,
            format!("Missing required client capability: {TASKS_EXTENSION}"),
        )
    }
}
