//! Policies in Rego: bundles, loaded with the configuration and evaluated on threads of their own.
//!
//! A policy's text is the operator's, its input is a stranger's. The input is bounded in bytes, an
//! evaluation in time. The clock is read between steps, never within a call of a function, so
//! functions whose result may grow faster than their arguments need literals. regorus can bound
//! memory only with an allocator of its own, so memory is bounded by those three: by what an
//! evaluation can fill in its time with calls whose results are a constant factor larger than the
//! input.

mod answer;
mod bundle;
mod error;
mod files;
mod metrics;
mod program;
mod recursion;
mod syntax;
mod threads;
mod yaml;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::{BoxFuture, Decision, Decisions, Evaluator, EvaluatorError, PolicyQuestion};
use addons::mcp::{Bundle as BundleSettings, OnUnavailable, PoliciesSettings};
use regorus::Value;
use serde_json::value::RawValue;

pub use error::LoadError;
pub use metrics::PolicyMetrics;
pub use threads::PolicyThreads;

use bundle::Bundle;
use error::EvaluationError;
use metrics::{FAILED, TIMED_OUT, UNAVAILABLE, label};
use program::Program;

/// The largest input. Parsed it takes about ten times as much.
pub const MAX_INPUT_BYTES: usize = 4 << 20;

/// Evaluates the bundles of one configuration.
pub struct RegoEvaluator {
    bundles: Arc<[LoadedBundle]>,
    on_unavailable: OnUnavailable,
    threads: Arc<PolicyThreads>,
    metrics: Arc<PolicyMetrics>,
}

struct LoadedBundle {
    settings: BundleSettings,
    /// `None`: it could not be loaded.
    program: Option<Program>,
}

/// A bundle that could not be loaded.
#[derive(Debug)]
pub struct Unloaded {
    /// What the configuration says of it, and where.
    pub settings: BundleSettings,
    /// Why not, and what to do.
    pub error: LoadError,
}

impl RegoEvaluator {
    /// Loads the bundles and compiles their policies. Blocks. The caller reports those that could
    /// not be loaded; what they mean for messages is `on_unavailable`.
    pub fn load(
        settings: &PoliciesSettings,
        threads: Arc<PolicyThreads>,
        metrics: Arc<PolicyMetrics>,
    ) -> (Self, Vec<Unloaded>) {
        let mut unloaded = Vec::new();
        let mut bundles = Vec::new();
        for bundle in &settings.bundles {
            metrics.create_configured(&bundle.id);
            let program = match load(bundle) {
                Ok(program) => Some(program),
                Err(error) => {
                    let settings = bundle.clone();
                    unloaded.push(Unloaded { settings, error });
                    None
                }
            };
            let settings = bundle.clone();
            bundles.push(LoadedBundle { settings, program });
        }
        let evaluator = Self {
            bundles: bundles.into(),
            on_unavailable: settings.on_unavailable,
            threads,
            metrics,
        };
        (evaluator, unloaded)
    }

    /// The bundles that are for a method and not loaded.
    fn unavailable(&self, method: &str) -> impl Iterator<Item = &Arc<str>> {
        let asked = self
            .bundles
            .iter()
            .filter(move |bundle| bundle.is_for(method));
        let unavailable = asked.filter(|bundle| bundle.program.is_none());
        unavailable.map(|bundle| &bundle.settings.id)
    }

    /// Counts the bundles that are not loaded. An error where they deny.
    fn check_unavailable(&self, method: &str) -> Result<(), EvaluatorError> {
        let mut missing = None;
        for id in self.unavailable(method) {
            self.metrics.count(id, UNAVAILABLE);
            missing = Some(id);
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
        // Once for each message.
        if question.decided == 0 {
            self.check_unavailable(method)?;
        }
        let bytes = question.input.len();
        if bytes > MAX_INPUT_BYTES {
            return Err(EvaluatorError::Failed(format!(
                "the input is {bytes} bytes long, the limit is {MAX_INPUT_BYTES}"
            )));
        }
        let asked = Asked {
            bundles: Arc::clone(&self.bundles),
            metrics: Arc::clone(&self.metrics),
            method: method.into(),
            ends: question.ends,
        };
        let limit = asked.left();
        let work = move || asked.decide(&question.input, question.decided);
        self.threads.run(limit, bytes, work).await?
    }
}

impl Evaluator for RegoEvaluator {
    fn asks(&self, method: &str) -> bool {
        self.bundles.iter().any(|bundle| bundle.is_for(method))
    }

    fn reads_responses(&self, method: &str) -> bool {
        let asked = self.bundles.iter().filter(|bundle| bundle.is_for(method));
        let mut programs = asked.map(|bundle| bundle.program.as_ref());
        programs.any(|program| program.is_none_or(Program::reads_responses))
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

/// One evaluation of the bundles that are for a method.
struct Asked {
    bundles: Arc<[LoadedBundle]>,
    metrics: Arc<PolicyMetrics>,
    method: Box<str>,
    /// `None`: later than clocks can say.
    ends: Option<Instant>,
}

impl Asked {
    /// Evaluates all bundles but the first `decided`, up to one that redacts.
    fn decide(&self, input: &str, decided: usize) -> Result<Decisions, EvaluatorError> {
        let bundles = self.bundles.iter();
        let asked = bundles.filter(|bundle| bundle.is_for(&self.method));
        let programs =
            asked.filter_map(|bundle| Some((&bundle.settings.id, bundle.program.as_ref()?)));
        let mut programs = programs.skip(decided);
        let is_read = |member: &str| programs.clone().any(|(_, program)| program.reads(member));
        let input = read_input(input, is_read)
            .map_err(|error| EvaluatorError::Failed(format!("the input is no JSON: {error}")))?;
        let mut all = Vec::new();
        for (bundle, program) in programs.by_ref() {
            let decision = self.ask(bundle, program, &input)?;
            let redacts = decision.modified().is_some();
            all.push(decision);
            if redacts {
                break;
            }
        }
        let more = programs.next().is_some();
        Ok(Decisions { all, more })
    }

    fn left(&self) -> Duration {
        self.ends.map_or(Duration::MAX, |ends| {
            ends.saturating_duration_since(Instant::now())
        })
    }

    fn ask(
        &self,
        bundle: &Arc<str>,
        program: &Program,
        input: &Value,
    ) -> Result<Decision, EvaluatorError> {
        let begun = Instant::now();
        let answer = match self.left() {
            Duration::ZERO => Err(EvaluationError::TimedOut),
            left => program.evaluate(input, left),
        };
        self.metrics.observe(bundle, begun.elapsed());
        let (label, result) = match answer {
            Ok(answer) => (
                label(&answer.effect),
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
            // It has lines of the policy, which the agent need not know.
            Err(EvaluationError::Failed(error)) => {
                tracing::warn!(%bundle, %error, "a policy failed");
                let message = format!("the policy {bundle:?} failed");
                (FAILED, Err(EvaluatorError::Failed(message)))
            }
            Err(EvaluationError::Answer(error)) => {
                tracing::warn!(%bundle, %error, "a policy has a wrong answer");
                let message = format!("the policy {bundle:?}: {error}");
                (FAILED, Err(EvaluatorError::Failed(message)))
            }
        };
        self.metrics.count(bundle, label);
        result
    }
}

/// Parses the members of an input that `is_read` names. The others are skipped: they are most of
/// the text.
fn read_input(text: &str, is_read: impl Fn(&str) -> bool) -> serde_json::Result<Value> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    let read = members.into_iter().filter(|(member, _)| is_read(member));
    let values = read.map(|(member, json)| {
        // Half the time that `Value::from_json_str` takes, which collects equal keys.
        Ok((Value::from(member), serde_json::from_str(json.get())?))
    });
    let input: serde_json::Result<BTreeMap<Value, Value>> = values.collect();
    input.map(Value::from)
}

/// Reads and compiles one bundle.
fn load(settings: &BundleSettings) -> Result<Program, LoadError> {
    let bundle = Bundle::read(&settings.path)?;
    let program = Program::compile(&bundle, &settings.entrypoint)?;
    tracing::info!(
        bundle = %settings.id,
        revision = bundle.manifest.revision,
        policies = bundle.policies.len(),
        compiled = program.runs_on_machine(),
        "policy bundle loaded"
    );
    Ok(program)
}

#[cfg(test)]
#[path = "tests/evaluator.rs"]
mod tests;
