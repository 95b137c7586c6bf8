//! Policies in Rego: bundles, which are loaded with the configuration and evaluated for each
//! message.
//!
//! The evaluator in `plain` evaluates plain policies, which have no variables or loops, define no
//! functions, and do not read the clock. The interpreter of regorus evaluates all others. Policies
//! run on the threads of [`PolicyThreads`]. If all policies for a message are plain and together
//! take at most `MAX_SHORT_NS` for an input of the message's size, their first evaluation runs on
//! the connection's thread instead.
//!
//! The operator writes the policies; their inputs are untrusted. The size of an input and the time
//! of an evaluation are limited. The evaluators check the clock between steps, never within a call
//! of a function. If the result of a function may grow faster than its arguments, a call must
//! therefore have literals for some or all of the arguments. A policy that calls `walk` gets only
//! small inputs, since `walk` copies the path of each value. The memory of an evaluation is not
//! limited: regorus can limit memory only with its own allocator. For a policy that collects results
//! in a loop, only the time limit bounds the memory.

mod answer;
mod bundle;
mod error;
mod files;
mod interpreter;
mod loading;
mod metrics;
mod plain;
mod program;
mod recursion;
mod syntax;
mod threads;
mod yaml;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use addons::contract::{
    BoxFuture, Decision, Decisions, Evaluator, EvaluatorError, PolicyInput, PolicyQuestion,
    ReadMembers,
};
use addons::mcp::{Bundle as BundleSettings, OnUnavailable};
use regorus::Value;

pub use error::LoadError;
pub use files::BundleFiles;
pub use loading::{Bundles, Unloaded};
pub use metrics::PolicyMetrics;
pub use threads::PolicyThreads;

use error::EvaluationError;
use metrics::{FAILED, TIMED_OUT, UNAVAILABLE};
use program::{MAX_INPUT_BYTES, Program, left};

/// Limit on the time of an evaluation on a connection's thread, in nanoseconds. All other
/// connections of the thread wait during the evaluation. An evaluation that may take longer runs on a policy
/// thread, at the price of two switches between threads.
const MAX_SHORT_NS: u64 = 1_000_000;

/// Evaluates the bundles of one configuration.
pub struct RegoEvaluator {
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
    pub fn new(
        bundles: Bundles,
        on_unavailable: OnUnavailable,
        threads: Arc<PolicyThreads>,
        metrics: Arc<PolicyMetrics>,
    ) -> Self {
        for bundle in &bundles.all {
            metrics.create_configured(&bundle.settings.id);
        }
        Self {
            bundles: bundles.all.into(),
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
        question: PolicyQuestion,
    ) -> Result<Decisions, EvaluatorError> {
        // A message is evaluated again after each redaction. The check runs only in the first
        // evaluation, so that a missing bundle is counted once for each message.
        if question.decided == 0 {
            self.check_unavailable(method)?;
        }
        let query = Query {
            bundles: Arc::clone(&self.bundles),
            metrics: Arc::clone(&self.metrics),
            method: method.into(),
            ends: question.ends,
        };
        let (bytes, decided) = (question.input.bytes(), question.decided);
        query.check_size(bytes, decided)?;
        let in_place = question.in_place && query.is_short(&question.input, decided);
        let work = move || query.evaluate(&question.input, decided);
        match in_place {
            true => without_panic(work),
            false => self.threads.run(left(question.ends), bytes, work).await?,
        }
    }
}

impl Evaluator for RegoEvaluator {
    fn covers(&self, method: &str) -> bool {
        self.bundles.iter().any(|bundle| bundle.is_for(method))
    }

    fn reads_responses(&self, method: &str) -> bool {
        let asked = self.bundles.iter().filter(|bundle| bundle.is_for(method));
        let mut programs = asked.map(|bundle| bundle.program.as_ref());
        programs.any(|program| program.is_none_or(Program::reads_responses))
    }

    fn members(&self, method: &str, decided: usize) -> ReadMembers {
        let programs = programs(&self.bundles, method, decided);
        let mut members = programs.map(|(_, program)| program.members());
        let first = members.next().cloned().unwrap_or(ReadMembers::ALL);
        members.fold(first, |all, members| all.and(members))
    }

    fn evaluate<'a>(
        &'a self,
        method: &'a str,
        question: PolicyQuestion,
    ) -> BoxFuture<'a, Result<Decisions, EvaluatorError>> {
        Box::pin(self.decide(method, question))
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
            // Takes half the time of `Value::from_json_str`, which collects repeated keys.
            let value: Value = serde_json::from_str(json).map_err(|error| {
                EvaluatorError::Failed(format!("{name} cannot be parsed as JSON: {error}"))
            })?;
            members.insert(Value::from(name), value);
        }
        let input = Value::from(members);
        let mut programs = self.programs(decided);
        let mut all = Vec::new();
        for (bundle, program) in programs.by_ref() {
            let decision = self.evaluate_one(bundle, program, &input)?;
            let redacts = decision.modified().is_some();
            all.push(decision);
            if redacts {
                break;
            }
        }
        let more = programs.next().is_some();
        Ok(Decisions { all, more })
    }

    fn programs(&self, decided: usize) -> impl Iterator<Item = (&Arc<str>, &Program)> {
        programs(&self.bundles, &self.method, decided)
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

    fn is_short(&self, input: &PolicyInput, decided: usize) -> bool {
        let mut programs = self.programs(decided);
        let total = programs.try_fold(0, |total: u64, (_, program)| {
            total.checked_add(program.max_nanoseconds(input.read_bytes())?)
        });
        total.is_some_and(|total| total <= MAX_SHORT_NS)
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
                    effect: answer.effect,
                    reason: answer.reason.map(String::into_boxed_str),
                }),
            ),
            Err(EvaluationError::TimedOut) => {
                tracing::warn!(%bundle, "a policy did not answer in time");
                (TIMED_OUT, Err(EvaluatorError::TimedOut))
            }
            // The error may contain lines of the policy, which the agent must not see.
            Err(EvaluationError::Failed(error)) => {
                tracing::warn!(%bundle, %error, "a policy failed");
                let message = format!("the policy {bundle:?} failed");
                (FAILED, Err(EvaluatorError::Failed(message)))
            }
            Err(EvaluationError::Answer(error)) => {
                tracing::warn!(%bundle, %error, "a policy returned an invalid answer");
                let message = format!("the policy {bundle:?}: {error}");
                (FAILED, Err(EvaluatorError::Failed(message)))
            }
        };
        self.metrics.count(bundle, label);
        result
    }
}

/// Runs `work` on this thread. As on the policy threads, a panic denies one message and does not
/// end the task of the connection. The evaluation, whose state may be inconsistent, is dropped.
fn without_panic<T>(work: impl FnOnce() -> Result<T, EvaluatorError>) -> Result<T, EvaluatorError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!("the policy engine panicked");
        Err(threads::panicked())
    })
}

/// The loaded bundles for a method, except the first `decided` bundles.
fn programs<'b>(
    bundles: &'b [LoadedBundle],
    method: &str,
    decided: usize,
) -> impl Iterator<Item = (&'b Arc<str>, &'b Program)> {
    let asked = bundles.iter().filter(move |bundle| bundle.is_for(method));
    let loaded = asked.filter_map(|bundle| Some((&bundle.settings.id, bundle.program.as_ref()?)));
    loaded.skip(decided)
}

#[cfg(test)]
#[path = "tests/evaluator.rs"]
mod tests;
