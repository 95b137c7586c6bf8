//! Policies as a command: a process for each message, which gets the input and prints the decision.
//!
//! The process runs in a sandbox without network. When it ends, its descendants are killed. It is
//! killed with them at the time limit, when it prints too much, and when the caller has left. The
//! decision does not wait until they are gone, but the next command of the slot does.

mod run;
mod slots;

use std::sync::Arc;
use std::time::Instant;

use addons::contract::{
    BoxFuture, ContainerId, Decision, Decisions, Evaluation, Evaluator, EvaluatorError, PolicyInput,
};
use addons::mcp::{CommandPolicy, OnUnavailable};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use super::answer::{self, Answer};
use super::error::LoadError;
use super::files::digest;
use super::metrics::{FAILED, PolicyMetrics, TIMED_OUT, UNAVAILABLE};
use super::program::{MAX_INPUT_BYTES, left};
use crate::mcp::mounts::{Machine, Program, Secrets, Spawner};
use crate::mcp::warnings::{Subject, warn};
use crate::sandbox::Limits;
use run::{Ran, run};
use slots::{Slot, Slots};

/// Limit on the length of a variable of a command's environment, in bytes. The kernel's limit is
/// 128 KiB, with the variable's name.
pub const MAX_VARIABLE_BYTES: usize = 120 << 10;
/// The variable with the input.
const INPUT: &str = "POLICY_INPUT";
/// The value of [`INPUT`] if the input is longer than [`MAX_VARIABLE_BYTES`]. It is no JSON, so a
/// policy that reads only the variable fails. If the variable were missing, an agent could make
/// the policy use a default by sending a long message.
const TOO_LONG: &str = "too long: read standard input";
/// The variable with the text of `source`.
const SOURCE: &str = "POLICY_SRC";

/// The text of the file `source`; `None` without that setting.
pub type Source = Option<Arc<str>>;

/// The command of one configuration.
pub struct LoadedCommand {
    settings: CommandPolicy,
    /// `None` if the command could not be loaded.
    loaded: Option<Loaded>,
}

struct Loaded {
    program: Program,
    secrets: Arc<Secrets>,
    revision: [u8; 32],
}

impl LoadedCommand {
    /// A command with its source. Fails if it could not be started on this machine. Blocks.
    pub fn load(
        settings: &CommandPolicy,
        source: Source,
        machine: &Machine,
    ) -> Result<Self, LoadError> {
        let loaded = Loaded::new(settings, source);
        let checked = machine.check_program(&loaded.program);
        checked.map_err(LoadError::Program)?;
        Ok(Self {
            loaded: Some(loaded),
            ..Self::unloaded(settings)
        })
    }

    /// A command that could not be loaded.
    pub fn unloaded(settings: &CommandPolicy) -> Self {
        Self {
            settings: settings.clone(),
            loaded: None,
        }
    }

    /// Whether the command judges messages of this method.
    pub fn is_for(&self, method: &str) -> bool {
        self.settings.methods.iter().any(|name| &**name == method)
    }

    /// SHA-256 of the command, its environment and its source; `None` if it is not loaded.
    pub fn revision(&self) -> Option<[u8; 32]> {
        self.loaded.as_ref().map(|loaded| loaded.revision)
    }
}

impl Loaded {
    fn new(settings: &CommandPolicy, source: Source) -> Self {
        let words = || settings.command.iter().map(|word| word.0.as_str());
        let mut env: Vec<_> = settings
            .env
            .iter()
            .map(|(name, value)| (name.clone(), value.0.clone()))
            .collect();
        let hidden = settings.env.iter().map(|(_, value)| value);
        let hidden = hidden.chain(&settings.expanded);
        let secrets = Arc::new(Secrets::among(hidden.map(|value| value.0.as_str())));
        if let Some(source) = source {
            env.push((SOURCE.to_owned(), Zeroizing::new(source.to_string())));
        }
        let paths = settings.read.iter().chain(&settings.work_dir);
        let paths: Vec<_> = paths
            .map(|path| path.as_os_str().as_encoded_bytes())
            .collect();
        let variables = env
            .iter()
            .flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let parts = words().chain([""]).chain(variables).map(str::as_bytes);
        let revision = digest(parts.chain([&[][..]]).chain(paths));
        let program = Program {
            command: words().map(str::to_owned).collect(),
            env,
            work_dir: settings.work_dir.clone(),
            read: settings.read.clone(),
            write: Vec::new(),
            confine: settings.confine,
            unix_sockets: false,
            knows_proxy: false,
            limits: Some(Limits {
                memory: settings.memory,
                cpus: settings.cpus,
            }),
        };
        Self {
            program,
            secrets,
            revision,
        }
    }
}

/// Runs the commands of all configurations.
pub struct CommandRunner {
    spawner: Spawner,
    machine: Arc<Machine>,
    slots: Slots,
    /// The runtime that runs the processes. The runtime of a client's connection may end before.
    runtime: Handle,
    running: TaskTracker,
}

impl CommandRunner {
    /// Creates a runner whose processes run on the calling runtime.
    pub fn new(spawner: Spawner, machine: Arc<Machine>) -> Self {
        let running = TaskTracker::new();
        running.close();
        Self {
            spawner,
            machine,
            slots: Slots::default(),
            runtime: Handle::current(),
            running,
        }
    }

    /// Runs a program in a slot, which is freed when all its processes are gone, however long that
    /// takes. Dropping the future kills them.
    async fn run(&self, slot: Slot, program: Program, secrets: Arc<Secrets>, input: String) -> Ran {
        let (sender, receiver) = oneshot::channel();
        let unwanted = CancellationToken::new();
        let _kills_when_dropped = unwanted.clone().drop_guard();
        let (spawner, machine) = (self.spawner.clone(), Arc::clone(&self.machine));
        let running = async move {
            let (ran, sandbox) = run(&spawner, &machine, program, &secrets, input, unwanted).await;
            // Fails if the caller has stopped waiting.
            let _ = sender.send(ran);
            if let Some(sandbox) = sandbox {
                sandbox.gone().await;
            }
            drop(slot);
        };
        self.running.spawn_on(running, &self.runtime);
        // Fails if the task panicked, or if its runtime has ended.
        receiver
            .await
            .unwrap_or_else(|_| Ran::failed("the task that runs it ended"))
    }

    /// What the commands may see.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Waits until no process runs.
    pub async fn settled(&self) {
        self.running.wait().await;
    }
}

/// Evaluates the command of one configuration.
pub struct CommandEvaluator {
    command: LoadedCommand,
    on_unavailable: OnUnavailable,
    runner: Arc<CommandRunner>,
    metrics: Arc<PolicyMetrics>,
}

impl CommandEvaluator {
    /// Creates the evaluator. `on_unavailable` decides on a message if the command could not be
    /// loaded.
    pub fn new(
        command: LoadedCommand,
        on_unavailable: OnUnavailable,
        runner: Arc<CommandRunner>,
        metrics: Arc<PolicyMetrics>,
    ) -> Self {
        metrics.create_configured(CommandPolicy::ID);
        Self {
            command,
            on_unavailable,
            runner,
            metrics,
        }
    }

    async fn decide(&self, evaluation: Evaluation) -> Result<Decisions, EvaluatorError> {
        let Some(loaded) = &self.command.loaded else {
            self.metrics.count(CommandPolicy::ID, UNAVAILABLE);
            return match self.on_unavailable {
                OnUnavailable::Allow => Ok(Decisions::default()),
                OnUnavailable::Deny => Err(EvaluatorError::Unavailable(
                    "the command that judges messages is not loaded".to_owned(),
                )),
            };
        };
        let answer = self.evaluate_one(loaded, &evaluation).await;
        let label = match &answer {
            Ok(answer) => answer.effect.as_str(),
            Err(EvaluatorError::TimedOut) => TIMED_OUT,
            Err(_) => FAILED,
        };
        self.metrics.count(CommandPolicy::ID, label);
        let answer = answer?;
        let decision = Decision {
            bundle: CommandPolicy::ID.into(),
            revision: loaded.revision,
            effect: answer.effect,
            reason: answer.reason.map(String::into_boxed_str),
            modified: answer.modified,
            metadata: answer.metadata,
            // What a command reads of its input is not known.
            depends_on_call: true,
        };
        Ok(Decisions {
            all: vec![decision],
            more: false,
        })
    }

    /// Runs the command once, and reads its answer. Logs why there is none; the agent must not see
    /// what the command printed.
    async fn evaluate_one(
        &self,
        loaded: &Loaded,
        evaluation: &Evaluation,
    ) -> Result<Answer, EvaluatorError> {
        let (container, bytes) = (&evaluation.container, evaluation.input.bytes());
        if bytes > MAX_INPUT_BYTES {
            let why = format!("the input is {bytes} bytes long, the limit is {MAX_INPUT_BYTES}");
            return Err(failed(container, "", &why));
        }
        let slot = self.slot(container, evaluation.ends, bytes).await?;
        let begun = Instant::now();
        let mut program = loaded.program.clone();
        let input = document(&evaluation.input);
        let variable = match input.len() {
            ..=MAX_VARIABLE_BYTES => input.clone(),
            _ => TOO_LONG.to_owned(),
        };
        program
            .env
            .push((INPUT.to_owned(), Zeroizing::new(variable)));
        let running = self
            .runner
            .run(slot, program, Arc::clone(&loaded.secrets), input);
        let ran = timeout(left(evaluation.ends), running).await;
        self.metrics.observe(CommandPolicy::ID, begun.elapsed());
        let Ran { output, stderr } = match ran {
            Ok(ran) => ran,
            Err(_elapsed) => return Err(timed_out(container, "it was killed")),
        };
        let answer = output.and_then(|output| answer::read_printed(&output));
        answer.map_err(|why| {
            // The error quotes what the command printed.
            let why = loaded.secrets.redact(why.as_bytes(), false);
            failed(container, &stderr, &why)
        })
    }

    /// Waits for a free slot.
    async fn slot(
        &self,
        container: &ContainerId,
        ends: Option<Instant>,
        bytes: usize,
    ) -> Result<Slot, EvaluatorError> {
        match timeout(left(ends), self.runner.slots.take(container, bytes)).await {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(error)) => {
                warn(CommandPolicy::ID, Subject::PolicyQueue, |left_out| {
                    tracing::warn!(%container, left_out, "too many messages wait for the policy command");
                });
                Err(error)
            }
            Err(_elapsed) => Err(timed_out(container, "it waited for others to end")),
        }
    }
}

impl Evaluator for CommandEvaluator {
    fn covers(&self, method: &str) -> bool {
        self.command.is_for(method)
    }

    fn evaluate<'a>(
        &'a self,
        _: &'a str,
        evaluation: Evaluation,
    ) -> BoxFuture<'a, Result<Decisions, EvaluatorError>> {
        Box::pin(self.decide(evaluation))
    }
}

fn failed(container: &ContainerId, stderr: &str, why: &str) -> EvaluatorError {
    warn(CommandPolicy::ID, Subject::PolicyFailure, |left_out| {
        tracing::warn!(%container, left_out, stderr, "the policy command failed: {why}");
    });
    EvaluatorError::Failed("the policy command failed; the log has the reason".to_owned())
}

fn timed_out(container: &ContainerId, what: &str) -> EvaluatorError {
    warn(CommandPolicy::ID, Subject::PolicyTimeout, |left_out| {
        tracing::warn!(
            %container,
            left_out,
            "the policy command did not answer in time: {what}"
        );
    });
    EvaluatorError::TimedOut
}

/// The input as one JSON object.
fn document(input: &PolicyInput) -> String {
    let mut text = String::with_capacity(input.bytes().saturating_add(512));
    for (name, value) in input.members() {
        text.push(if text.is_empty() { '{' } else { ',' });
        // The names are fixed and need no escaping.
        text.extend(["\"", name, "\":", value]);
    }
    if text.is_empty() {
        text.push('{');
    }
    text.push('}');
    text
}
