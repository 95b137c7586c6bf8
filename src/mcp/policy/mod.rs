//! Policies in Rego: bundles, loaded with the configuration and evaluated for each message.
//!
//! Plain policies have an evaluator of their own (`plain`); the interpreter of regorus evaluates
//! the others, on threads beside those of connections. A plain policy that an input of that size
//! cannot keep busy for longer than `MAX_SHORT_NS` is evaluated at once, on the thread that asks.
//!
//! A policy's text is the operator's, its input is a stranger's. The input is bounded in bytes, an
//! evaluation in time. The clock is read between steps, never within a call of a function, so
//! functions whose result may grow faster than their arguments need literals, and a policy that
//! calls `walk`, which copies the path of each value, gets small inputs only. Nothing bounds the
//! memory of an evaluation as such: regorus can do that only with an allocator of its own. A policy
//! that collects results in a loop can take what it can fill in its time.

mod answer;
mod bundle;
mod error;
mod files;
mod input;
mod interpreter;
mod metrics;
mod plain;
mod program;
mod recursion;
mod syntax;
mod threads;
mod yaml;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::{BoxFuture, Decision, Decisions, Evaluator, EvaluatorError, PolicyQuestion};
use addons::mcp::{Bundle as BundleSettings, OnUnavailable, PoliciesSettings};
use regorus::Value;

pub use error::LoadError;
pub use metrics::PolicyMetrics;
pub use threads::PolicyThreads;

use bundle::Bundle;
use error::EvaluationError;
use metrics::{FAILED, TIMED_OUT, UNAVAILABLE, label};
use program::{MAX_INPUT_BYTES, Program};

/// Nanoseconds for which an evaluation may keep a connection's thread busy: all other connections
/// of the thread wait for it. What may take longer runs on a thread of its own, at the price of two
/// switches between threads.
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
        let asked = Asked {
            bundles: Arc::clone(&self.bundles),
            metrics: Arc::clone(&self.metrics),
            method: method.into(),
            ends: question.ends,
        };
        let (bytes, decided) = (question.input.len(), question.decided);
        asked.check_size(bytes, decided)?;
        let is_short = asked.is_short(bytes, decided);
        let limit = asked.left();
        let work = move || asked.decide(&question.input, decided);
        if is_short {
            // As on the threads of policies, a panic denies one message; it does not end the task
            // of a connection. What a panic leaves behind is dropped with the evaluation.
            return catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                tracing::error!("the policy engine panicked");
                Err(threads::panicked())
            });
        }
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
        let mut programs = self.programs(decided);
        let is_read = |member: &str| programs.clone().any(|(_, program)| program.reads(member));
        let input = input::read(input, is_read)
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

    /// The loaded bundles that are for the method, but the first `decided`.
    fn programs(&self, decided: usize) -> impl Iterator<Item = (&Arc<str>, &Program)> + Clone {
        let bundles = self.bundles.iter();
        let asked = bundles.filter(|bundle| bundle.is_for(&self.method));
        let programs =
            asked.filter_map(|bundle| Some((&bundle.settings.id, bundle.program.as_ref()?)));
        programs.skip(decided)
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

    fn is_short(&self, bytes: usize, decided: usize) -> bool {
        let mut programs = self.programs(decided);
        let total = programs.try_fold(0, |total: u64, (_, program)| {
            total.checked_add(program.nanoseconds(bytes)?)
        });
        total.is_some_and(|total| total <= MAX_SHORT_NS)
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

/// Reads and compiles one bundle.
fn load(settings: &BundleSettings) -> Result<Program, LoadError> {
    let bundle = Bundle::read(&settings.path)?;
    let program = Program::compile(&bundle, &settings.entrypoint)?;
    tracing::info!(
        bundle = %settings.id,
        revision = bundle.manifest.revision,
        policies = bundle.policies.len(),
        plain = program.is_plain(),
        "policy bundle loaded"
    );
    Ok(program)
}

#[cfg(test)]
#[path = "tests/evaluator.rs"]
mod tests;
