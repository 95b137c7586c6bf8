//! Policies: Rego bundles, or a command, which are loaded with the configuration and evaluated for
//! each message.
//!
//! `command` has the second kind. The interpreter of regorus evaluates bundles, on the threads of
//! [`PolicyThreads`]. Functions whose results in regorus differ from those in OPA are in
//! `builtins`.
//!
//! The operator writes the policies; their inputs are untrusted. The size of an input and the time
//! of an evaluation are limited. The evaluators check the clock between steps, never within a call
//! of a function. If the result of a function may grow faster than its arguments, a call must
//! therefore have literals for some or all of the arguments. A policy that calls `walk` gets only
//! small inputs, since `walk` copies the path of each value. The memory of an evaluation is not
//! limited: regorus can limit memory only with its own allocator. For a policy that collects results
//! in a loop, only the time limit bounds the memory.

mod answer;
mod builtins;
mod bundle;
mod change;
mod characters;
mod command;
mod error;
mod files;
mod interpreter;
mod keeper;
mod loading;
mod metrics;
mod program;
mod recursion;
mod syntax;
mod text;
mod threads;
mod turns;
mod yaml;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use addons::contract::{
    BoxFuture, Decision, Decisions, Evaluation, Evaluator, EvaluatorError, PolicyInput,
};
use addons::mcp::{Bundle as BundleSettings, OnUnavailable};
use regorus::Value;

pub use change::{MAX_SOURCE, NotSet, PolicyChange};
pub use command::CommandRunner;
pub use error::LoadError;
pub use files::BundleFiles;
pub use keeper::PolicyKeeper;
pub use loading::{Policies, Unloaded};
pub use metrics::PolicyMetrics;
pub use threads::PolicyThreads;

use super::warnings::{Subject, warn};
use error::EvaluationError;
use metrics::{FAILED, TIMED_OUT, UNAVAILABLE};
use program::{MAX_INPUT_BYTES, Program, left};

/// The parts of evaluators that reloads keep.
pub struct PolicyParts {
    /// Evaluate bundles.
    pub threads: Arc<PolicyThreads>,
    /// Runs commands.
    pub commands: Arc<CommandRunner>,
    /// The metrics of all policies.
    pub metrics: Arc<PolicyMetrics>,
}

/// Evaluates the bundles of one configuration.
struct RegoEvaluator {
    bundles: Arc<[LoadedBundle]>,
    on_unavailable: OnUnavailable,
    threads: Arc<PolicyThreads>,
    metrics: Arc<PolicyMetrics>,
}

struct LoadedBundle {
    settings: BundleSettings,
    /// `None` if the bundle could not be loaded.
    program: Option<Program>,
}

impl RegoEvaluator {
    /// Creates the evaluator of `bundles`. `on_unavailable` decides on a message if a bundle for
    /// its method could not be loaded.
    fn new(
        bundles: Vec<LoadedBundle>,
        on_unavailable: OnUnavailable,
        threads: Arc<PolicyThreads>,
        metrics: Arc<PolicyMetrics>,
    ) -> Self {
        for bundle in &bundles {
            metrics.create_configured(&bundle.settings.id);
        }
        Self {
            bundles: bundles.into(),
            on_unavailable,
            threads,
            metrics,
        }
    }

    /// Counts the bundles for a method that are not loaded. With `on_unavailable: deny`, fails if
    /// there is such a bundle.
    fn check_unavailable(&self, method: &str) -> Result<(), EvaluatorError> {
        let mut missing = None;
        for bundle in self.bundles.iter().filter(|bundle| bundle.is_for(method)) {
            if bundle.program.is_none() {
                self.metrics.count(&bundle.settings.id, UNAVAILABLE);
                missing = Some(&bundle.settings.id);
            }
        }
        match missing {
            Some(id) if self.on_unavailable == OnUnavailable::Deny => {
                let message = format!("the policy bundle {id:?} is not loaded");
                Err(EvaluatorError::Unavailable(message))
            }
            _ => Ok(()),
        }
    }

    async fn decide(
        &self,
        method: &str,
        evaluation: Evaluation,
    ) -> Result<Decisions, EvaluatorError> {
        // A message is evaluated again after each redaction. The check runs only in the first
        // evaluation, so that a missing bundle is counted once for each message.
        if evaluation.decided == 0 {
            self.check_unavailable(method)?;
        }
        let query = Query {
            bundles: Arc::clone(&self.bundles),
            metrics: Arc::clone(&self.metrics),
            method: method.into(),
            ends: evaluation.ends,
        };
        let (bytes, decided) = (evaluation.input.bytes(), evaluation.decided);
        let container = evaluation.container.clone();
        query.check_size(bytes, decided)?;
        let work = move || query.evaluate(&evaluation.input, decided);
        let limit = left(evaluation.ends);
        self.threads.run(&container, limit, bytes, work).await?
    }
}

impl Evaluator for RegoEvaluator {
    fn covers(&self, method: &str) -> bool {
        self.bundles.iter().any(|bundle| bundle.is_for(method))
    }

    fn evaluate<'a>(
        &'a self,
        method: &'a str,
        evaluation: Evaluation,
    ) -> BoxFuture<'a, Result<Decisions, EvaluatorError>> {
        Box::pin(self.decide(method, evaluation))
    }
}

impl LoadedBundle {
    fn is_for(&self, method: &str) -> bool {
        self.settings.methods.iter().any(|name| &**name == method)
    }
}

/// One query of the bundles for a method.
struct Query {
    bundles: Arc<[LoadedBundle]>,
    metrics: Arc<PolicyMetrics>,
    method: Box<str>,
    /// The deadline; `None` if it is later than an [`Instant`] can represent.
    ends: Option<Instant>,
}

impl Query {
    /// Evaluates the loaded bundles for the method, except the first `decided` bundles. Stops after
    /// a bundle that redacts.
    fn evaluate(&self, input: &PolicyInput, decided: usize) -> Result<Decisions, EvaluatorError> {
        let mut members = BTreeMap::new();
        for (name, json) in input.members() {
            let value = builtins::read_json(json).map_err(|error| {
                EvaluatorError::Failed(format!("{name} cannot be parsed as JSON: {error}"))
            })?;
            members.insert(Value::from(name), value);
        }
        let input = Value::from(members);
        let mut programs = self.programs(decided);
        let mut all = Vec::new();
        for (bundle, program) in programs.by_ref() {
            let decision = self.evaluate_one(bundle, program, &input)?;
            let redacts = decision.modified.is_some();
            all.push(decision);
            if redacts {
                break;
            }
        }
        let more = programs.next().is_some();
        Ok(Decisions { all, more })
    }

    /// The loaded bundles for the method, except the first `decided` bundles.
    fn programs(&self, decided: usize) -> impl Iterator<Item = (&Arc<str>, &Program)> {
        let asked = self
            .bundles
            .iter()
            .filter(|bundle| bundle.is_for(&self.method));
        let loaded =
            asked.filter_map(|bundle| Some((&bundle.settings.id, bundle.program.as_ref()?)));
        loaded.skip(decided)
    }

    fn check_size(&self, bytes: usize, decided: usize) -> Result<(), EvaluatorError> {
        let limits = self
            .programs(decided)
            .map(|(_, program)| program.max_input());
        let limit = limits.fold(MAX_INPUT_BYTES, usize::min);
        if bytes <= limit {
            return Ok(());
        }
        Err(EvaluatorError::Failed(format!(
            "the input is {bytes} bytes long, the limit is {limit}"
        )))
    }

    fn evaluate_one(
        &self,
        bundle: &Arc<str>,
        program: &Program,
        input: &Value,
    ) -> Result<Decision, EvaluatorError> {
        let begun = Instant::now();
        let answer = match self.ends {
            Some(ends) if ends <= begun => Err(EvaluationError::TimedOut),
            ends => program.evaluate(input, ends),
        };
        self.metrics.observe(bundle, begun.elapsed());
        let (label, result) = match answer {
            Ok(answer) => (
                answer.effect.as_str(),
                Ok(Decision {
                    bundle: Arc::clone(bundle),
                    revision: program.revision(),
                    effect: answer.effect,
                    reason: answer.reason.map(String::into_boxed_str),
                    modified: answer.modified,
                    metadata: answer.metadata,
                    depends_on_call: program.depends_on_call(),
                }),
            ),
            Err(EvaluationError::TimedOut) => {
                warn(bundle, Subject::PolicyTimeout, |left_out| {
                    tracing::warn!(%bundle, left_out, "a policy did not answer in time");
                });
                (TIMED_OUT, Err(EvaluatorError::TimedOut))
            }
            // The error may contain lines of the policy, which the agent must not see.
            Err(EvaluationError::Failed(error)) => {
                warn(bundle, Subject::PolicyFailure, |left_out| {
                    tracing::warn!(%bundle, left_out, %error, "a policy failed");
                });
                let message = format!("the policy {bundle:?} failed");
                (FAILED, Err(EvaluatorError::Failed(message)))
            }
            Err(EvaluationError::Answer(error)) => {
                warn(bundle, Subject::PolicyFailure, |left_out| {
                    tracing::warn!(%bundle, left_out, %error, "a policy returned an invalid answer");
                });
                let message = format!("the policy {bundle:?}: {error}");
                (FAILED, Err(EvaluatorError::Failed(message)))
            }
        };
        self.metrics.count(bundle, label);
        result
    }
}

#[cfg(test)]
#[path = "tests/evaluator.rs"]
mod tests;
